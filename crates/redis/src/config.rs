//! What a Redis URL says: address, credentials and settings, checked once. Owns no connection.

use std::borrow::Cow;
use std::fmt;
use std::path::PathBuf;

use leasehold_core::{Error, Label, Namespace};
use percent_encoding::percent_decode_str;
use url::Url;

use crate::hosts::{self, Host};
use crate::keys::Keys;

pub(crate) const DEFAULT_PORT: u16 = 6379;
const DEFAULT_SENTINEL_PORT: u16 = 26_379;
/// The query parameters a URL may have.
const PARAMETERS: &str = "namespace, db, label, acks, scripting, allow_unfenced, user, password, sentinel_user, \
                          sentinel_password, ca, cert, key";

/// Where a Redis or Valkey server is and how to use it.
///
/// Neither `Debug` nor any message shows the password.
#[derive(Clone)]
pub struct RedisConfig {
    pub(crate) target: Target,
    /// The login at the server itself, also where Sentinels tell which one that is.
    pub(crate) login: Login,
    pub(crate) db: u32,
    pub(crate) keys: Keys,
    pub(crate) scripting: bool,
    pub(crate) allow_unfenced: bool,
    pub(crate) label: Option<Label>,
    pub(crate) acks: u32,
}

/// What a URL leads to.
#[derive(Clone)]
pub(crate) enum Target {
    /// One server, always the same.
    Server(Address),
    /// The primary of a service, whichever server that is.
    Sentinel(Sentinels),
}

/// Sentinels, and the service they are asked about.
#[derive(Clone)]
pub(crate) struct Sentinels {
    pub(crate) hosts: Vec<Host>,
    pub(crate) service: String,
    /// The login at the Sentinels. The one of the servers is never sent to them.
    pub(crate) login: Login,
    /// For the connections to Sentinels and servers alike.
    pub(crate) tls: Option<Tls>,
}

impl Sentinels {
    /// The address of a Sentinel, or of a server that one has named.
    pub(crate) fn address(&self, host: &Host) -> Address {
        Address::Tcp { host: host.name.clone(), port: host.port, tls: self.tls.clone() }
    }
}

/// Who logs in.
#[derive(Clone, Default)]
pub(crate) struct Login {
    pub(crate) user: Option<String>,
    pub(crate) password: Option<Secret>,
}

impl Login {
    /// A user without a password: nobody can log in like that.
    fn is_half(&self) -> bool {
        self.user.is_some() && self.password.is_none()
    }
}

/// Where the server listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Address {
    Tcp { host: String, port: u16, tls: Option<Tls> },
    Unix(PathBuf),
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp { host, port, .. } => Host { name: host.clone(), port: *port }.fmt(f),
            Self::Unix(path) => path.display().fmt(f),
        }
    }
}

/// Files of a TLS connection; without `ca` the system's root certificates are used.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tls {
    pub(crate) ca: Option<PathBuf>,
    pub(crate) cert: Option<PathBuf>,
    pub(crate) key: Option<PathBuf>,
}

/// A text that is never shown.
#[derive(Clone)]
pub(crate) struct Secret(String);

impl Secret {
    pub(crate) fn expose(&self) -> &str {
        &self.0
    }
}

impl RedisConfig {
    /// Reads a URL:
    ///
    /// - `redis://[user[:password]@]host[:port][/db]`
    /// - `rediss://…`, the same over TLS (feature `tls`), with `ca`, `cert` and `key` naming PEM files
    /// - `redis+unix:///path/of/socket`, with `user` and `password` as parameters
    /// - `redis+sentinel://[user[:password]@]host[:port],…/service[/db]`: the primary of that service, as the
    ///   Sentinels at these hosts tell, also after a failover. The login is that of the servers; the one of the
    ///   Sentinels, if they want one, is `sentinel_user` and `sentinel_password`. `rediss+sentinel://…` for TLS to
    ///   both.
    ///
    /// and these parameters: `namespace` (`lock:` by default), `db`, `label` (what operators read of this
    /// process), `acks` (how many replicas must confirm each grant), `scripting=off` with `allow_unfenced=1` (for servers that forbid scripts).
    ///
    /// Special characters in users, passwords and parameters are percent-encoded: `@ / # % ? &` as
    /// `%40 %2F %23 %25 %3F %26`.
    ///
    /// # Errors
    /// `Config` when the URL cannot be read, names something unknown, or asks for what is not possible. The
    /// message shows no password.
    ///
    /// ```
    /// use leasehold_redis::RedisConfig;
    ///
    /// let config = RedisConfig::from_url("redis://app:s%40crets@10.0.0.7/2?namespace=billing:")?;
    /// assert_eq!(config.describe(), "redis://app@10.0.0.7:6379/2");
    /// # Ok::<(), leasehold_core::Error>(())
    /// ```
    pub fn from_url(text: &str) -> Result<Self, Error> {
        // A password with a / or ? in it ends up in the path or the parameters, which messages quote.
        Self::read(text).map_err(|error| if has_misplaced_login(text) { misplaced_login() } else { error })
    }

    fn read(text: &str) -> Result<Self, Error> {
        if is_sentinel(text) {
            let (text, hosts) = hosts::split(text, DEFAULT_SENTINEL_PORT)?;
            return Self::read_one(&text, Some(hosts));
        }
        Self::read_one(text, None)
    }

    /// Reads a URL with one host, or one that stands for the hosts of Sentinels.
    fn read_one(text: &str, sentinels: Option<Vec<Host>>) -> Result<Self, Error> {
        let url = Url::parse(text).map_err(|error| {
            if names_several_hosts(text) {
                return several_hosts();
            }
            Error::config(format!(
                "the Redis URL cannot be read ({error}): write redis://user:password@host:6379/0, with special \
                 characters of the password percent-encoded (@ as %40, / as %2F, # as %23, % as %25)"
            ))
        })?;
        if url.fragment().is_some() {
            return Err(Error::config(
                "the Redis URL has a # in it: percent-encode it as %23 if it belongs to the user or the password",
            ));
        }
        let (target, db) = match sentinels {
            Some(hosts) => sentinel_target(&url, hosts)?,
            None => server_target(&url)?,
        };
        let mut config = Self {
            target,
            login: Login {
                user: some_text(decoded(url.username(), "the user")?),
                password: url.password().map(|text| decoded(text, "the password")).transpose()?.map(Secret),
            },
            db: 0,
            keys: Keys::new(Namespace::default())?,
            scripting: true,
            allow_unfenced: false,
            label: None,
            acks: 0,
        };
        config.read_db(&db)?;
        for (parameter, value) in pairs(&url)? {
            config.read_parameter(&parameter, &value)?;
        }
        config.check()?;
        Ok(config)
    }

    fn read_db(&mut self, text: &str) -> Result<(), Error> {
        if !text.is_empty() {
            self.db = text.parse().map_err(|_| {
                Error::config(format!(
                    "the database {text:?} of the Redis URL is not a number: write redis://host/2 or ?db=2"
                ))
            })?;
        }
        Ok(())
    }

    fn read_parameter(&mut self, parameter: &str, value: &str) -> Result<(), Error> {
        match parameter {
            "namespace" => self.keys = Keys::new(Namespace::new(value)?)?,
            "db" => self.read_db(value)?,
            "label" => self.label = Some(Label::new(value)?),
            "scripting" => self.scripting = switch(parameter, value)?,
            "allow_unfenced" => self.allow_unfenced = switch(parameter, value)?,
            "acks" => self.acks = number(parameter, value)?,
            "user" => self.login.user = Some(value.to_owned()),
            "password" => self.login.password = Some(Secret(value.to_owned())),
            "sentinel_user" => self.sentinels(parameter)?.login.user = Some(value.to_owned()),
            "sentinel_password" => {
                self.sentinels(parameter)?.login.password = Some(Secret(value.to_owned()));
            }
            "ca" | "cert" | "key" => self.read_tls_file(parameter, value)?,
            _ => {
                return Err(Error::config(format!(
                    "the Redis URL has the unknown parameter {parameter:?}: known are {PARAMETERS}"
                )));
            }
        }
        Ok(())
    }

    /// The Sentinels, for a parameter that only they have.
    fn sentinels(&mut self, parameter: &str) -> Result<&mut Sentinels, Error> {
        match &mut self.target {
            Target::Sentinel(sentinels) => Ok(sentinels),
            Target::Server(_) => {
                Err(Error::config(format!("the parameter {parameter} is for redis+sentinel:// URLs only")))
            }
        }
    }

    fn tls(&self) -> Option<&Tls> {
        match &self.target {
            Target::Server(Address::Tcp { tls, .. }) | Target::Sentinel(Sentinels { tls, .. }) => {
                tls.as_ref()
            }
            Target::Server(Address::Unix(_)) => None,
        }
    }

    fn read_tls_file(&mut self, parameter: &str, value: &str) -> Result<(), Error> {
        let (Target::Server(Address::Tcp { tls: Some(tls), .. })
        | Target::Sentinel(Sentinels { tls: Some(tls), .. })) = &mut self.target
        else {
            return Err(Error::config(format!("the parameter {parameter} is for rediss:// URLs only")));
        };
        let file = Some(PathBuf::from(value));
        match parameter {
            "ca" => tls.ca = file,
            "cert" => tls.cert = file,
            _ => tls.key = file,
        }
        Ok(())
    }

    fn check(&self) -> Result<(), Error> {
        if self.tls().is_some_and(|tls| tls.cert.is_some() != tls.key.is_some()) {
            return Err(Error::config("a client certificate needs both parameters, cert and key"));
        }
        if let Target::Sentinel(sentinels) = &self.target
            && sentinels.login.is_half()
        {
            return Err(Error::config("sentinel_user needs sentinel_password, too"));
        }
        if self.login.is_half() {
            return Err(Error::config(
                "the Redis URL names a user but no password: write redis://user:password@host, or \
                 redis://:password@host for the default user",
            ));
        }
        if !self.scripting && !self.allow_unfenced {
            return Err(Error::config(
                "scripting=off gives locks without fencing tokens and without a queue, so a stale holder cannot \
                 be told from the present one: add allow_unfenced=1 to accept that, or allow scripts",
            ));
        }
        if !self.scripting && self.acks > 0 {
            return Err(Error::config(
                "acks need scripts: without them nothing tells which grant the replicas have confirmed",
            ));
        }
        if self.scripting && self.allow_unfenced {
            return Err(Error::config(
                "allow_unfenced=1 has no effect while scripts are used: remove it, or add scripting=off",
            ));
        }
        Ok(())
    }

    /// The same server with another namespace.
    ///
    /// # Errors
    /// `Config` when the namespace has braces that a cluster would take for a broken hash tag.
    pub fn with_namespace(mut self, namespace: Namespace) -> Result<Self, Error> {
        self.keys = Keys::new(namespace)?;
        Ok(self)
    }

    /// The namespace of all keys and channels.
    pub fn namespace(&self) -> &Namespace {
        self.keys.namespace()
    }

    /// The label the URL asks for.
    pub fn label(&self) -> Option<&Label> {
        self.label.as_ref()
    }

    /// How many replicas must confirm each grant, as the URL asks for; 0 if it does not.
    pub fn acks(&self) -> u32 {
        self.acks
    }

    /// The server's URL without secrets.
    pub fn describe(&self) -> String {
        let user = self.login.user.as_ref().map(|user| format!("{user}@")).unwrap_or_default();
        let secure = if self.tls().is_some() { "s" } else { "" };
        match &self.target {
            Target::Server(address @ Address::Tcp { .. }) => {
                format!("redis{secure}://{user}{address}/{}", self.db)
            }
            Target::Server(Address::Unix(path)) => {
                format!("redis+unix://{user}{}?db={}", path.display(), self.db)
            }
            Target::Sentinel(Sentinels { hosts, service, .. }) => {
                let hosts: Vec<_> = hosts.iter().map(Host::to_string).collect();
                format!("redis{secure}+sentinel://{user}{}/{service}/{}", hosts.join(","), self.db)
            }
        }
    }
}

impl fmt::Debug for RedisConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisConfig")
            .field("url", &self.describe())
            .field("namespace", self.namespace())
            .field("scripting", &self.scripting)
            .finish_non_exhaustive()
    }
}

/// Whether Sentinels are to be asked where the server is.
fn is_sentinel(text: &str) -> bool {
    text.starts_with("redis+sentinel://") || text.starts_with("rediss+sentinel://")
}

/// The service, and the text of the database: `/service` or `/service/2`.
fn sentinel_target(url: &Url, hosts: Vec<Host>) -> Result<(Target, String), Error> {
    let path = url.path().trim_start_matches('/');
    let (service, db) = path.split_once('/').unwrap_or((path, ""));
    let service = decoded(service, "the service")?;
    if service.is_empty() {
        return Err(Error::config(
            "the URL names no service: write redis+sentinel://host1:26379,host2:26379/service, with the name that \
             the Sentinels monitor it by",
        ));
    }
    let tls = tls_of(url, "rediss+sentinel")?;
    Ok((Target::Sentinel(Sentinels { hosts, service, login: Login::default(), tls }), db.to_owned()))
}

/// The address, and the text of the database.
fn server_target(url: &Url) -> Result<(Target, String), Error> {
    let address = address(url)?;
    let db = match address {
        Address::Tcp { .. } => url.path().trim_start_matches('/').to_owned(),
        Address::Unix(_) => String::new(),
    };
    Ok((Target::Server(address), db))
}

fn tls_of(url: &Url, scheme: &str) -> Result<Option<Tls>, Error> {
    if url.scheme() != scheme {
        return Ok(None);
    }
    if !cfg!(feature = "tls") {
        return Err(Error::config(format!(
            "{scheme}:// needs the feature tls, which this build does not have"
        )));
    }
    Ok(Some(Tls::default()))
}

fn address(url: &Url) -> Result<Address, Error> {
    match url.scheme() {
        "redis" | "rediss" => {
            let host = match url.host_str() {
                Some(host) if !host.is_empty() => decoded(host, "the host")?,
                _ => return Err(Error::config("the Redis URL names no host: write redis://127.0.0.1/")),
            };
            if host.contains(',') {
                return Err(several_hosts());
            }
            let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
            let tls = tls_of(url, "rediss")?;
            Ok(Address::Tcp { host, port: url.port().unwrap_or(DEFAULT_PORT), tls })
        }
        "redis+unix" | "unix" => {
            let path = decoded(url.path(), "the path")?;
            if url.host_str().is_some_and(|host| !host.is_empty()) || path.len() < 2 {
                return Err(Error::config(
                    "the URL of a socket is redis+unix:///path/of/socket, with three slashes",
                ));
            }
            Ok(Address::Unix(path.into()))
        }
        other => Err(Error::config(format!(
            "{other}:// is not known: write redis:// or redis+unix:// for one server, redis+sentinel:// or \
             redis+cluster:// for several; rediss… over TLS"
        ))),
    }
}

/// The parameters, percent-decoded. A `+` stays what it is: in a password it is no space.
fn pairs(url: &Url) -> Result<Vec<(String, String)>, Error> {
    url.query()
        .unwrap_or_default()
        .split('&')
        .filter(|pair| !pair.is_empty())
        .map(|pair| {
            let (parameter, value) = pair.split_once('=').unwrap_or((pair, ""));
            Ok((decoded(parameter, "a parameter")?, decoded(value, "the value of a parameter")?))
        })
        .collect()
}

fn decoded(text: &str, what: &str) -> Result<String, Error> {
    percent_decode_str(text)
        .decode_utf8()
        .map(Cow::into_owned)
        .map_err(|_| Error::config(format!("{what} in the Redis URL is not UTF-8 after percent-decoding")))
}

/// Whether the part before an @ has one of the characters that end it.
fn has_misplaced_login(text: &str) -> bool {
    let rest = text.split_once("://").map_or(text, |(_, rest)| rest);
    rest.find(['/', '?', '#']).is_some_and(|end| rest[end..].contains('@'))
}

/// Whether there is a comma where the hosts are.
fn names_several_hosts(text: &str) -> bool {
    let rest = text.split_once("://").map_or(text, |(_, rest)| rest);
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    authority.rsplit('@').next().is_some_and(|hosts| hosts.contains(','))
}

fn several_hosts() -> Error {
    Error::config(
        "the Redis URL names several hosts: for Sentinels write redis+sentinel://host1,host2/service, for the nodes of \
         a cluster redis+cluster://host1,host2",
    )
}

fn misplaced_login() -> Error {
    Error::config(
        "the Redis URL cannot be read: it has an @ behind a /, ? or #. Percent-encode these in the user, the \
         password and the parameters (@ as %40, / as %2F, ? as %3F, # as %23, % as %25)",
    )
}

fn some_text(text: String) -> Option<String> {
    Some(text).filter(|text| !text.is_empty())
}

fn number(parameter: &str, value: &str) -> Result<u32, Error> {
    value.parse().map_err(|_| Error::config(format!("{parameter}={value} is not a number")))
}

fn switch(parameter: &str, value: &str) -> Result<bool, Error> {
    match value {
        "on" | "1" | "true" | "yes" => Ok(true),
        "off" | "0" | "false" | "no" => Ok(false),
        _ => {
            Err(Error::config(format!("{parameter}={value} is not understood: write {parameter}=on or off")))
        }
    }
}

#[cfg(test)]
mod tests;
