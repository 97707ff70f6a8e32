//! What a Redis URL says: address, credentials and settings, checked once. Owns no connection.

use std::borrow::Cow;
use std::fmt;
use std::path::PathBuf;

use leasehold_core::{Error, Label, Namespace};
use percent_encoding::percent_decode_str;
use url::Url;

use crate::keys::Keys;

const DEFAULT_PORT: u16 = 6379;
/// The query parameters a URL may have.
const PARAMETERS: &str = "namespace, db, label, scripting, allow_unfenced, user, password, ca, cert, key";

/// Where a Redis or Valkey server is and how to use it.
///
/// Neither `Debug` nor any message shows the password.
#[derive(Clone)]
pub struct RedisConfig {
    pub(crate) address: Address,
    pub(crate) user: Option<String>,
    pub(crate) password: Option<Secret>,
    pub(crate) db: u32,
    pub(crate) keys: Keys,
    pub(crate) scripting: bool,
    pub(crate) allow_unfenced: bool,
    pub(crate) label: Option<Label>,
}

/// Where the server listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Address {
    Tcp { host: String, port: u16, tls: Option<Tls> },
    Unix(PathBuf),
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
    ///
    /// and these parameters: `namespace` (`lock:` by default), `db`, `label` (what operators read of this
    /// process), `scripting=off` with `allow_unfenced=1` (for servers that forbid scripts).
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
        let url = Url::parse(text).map_err(|error| {
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
        let mut config = Self {
            address: address(&url)?,
            user: some_text(decoded(url.username(), "the user")?),
            password: url.password().map(|text| decoded(text, "the password")).transpose()?.map(Secret),
            db: 0,
            keys: Keys::new(Namespace::default())?,
            scripting: true,
            allow_unfenced: false,
            label: None,
        };
        if matches!(config.address, Address::Tcp { .. }) {
            config.read_db(url.path().trim_start_matches('/'))?;
        }
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
            "user" => self.user = Some(value.to_owned()),
            "password" => self.password = Some(Secret(value.to_owned())),
            "ca" | "cert" | "key" => self.read_tls_file(parameter, value)?,
            _ => {
                return Err(Error::config(format!(
                    "the Redis URL has the unknown parameter {parameter:?}: known are {PARAMETERS}"
                )));
            }
        }
        Ok(())
    }

    fn read_tls_file(&mut self, parameter: &str, value: &str) -> Result<(), Error> {
        let Address::Tcp { tls: Some(tls), .. } = &mut self.address else {
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
        if let Address::Tcp { tls: Some(tls), .. } = &self.address
            && tls.cert.is_some() != tls.key.is_some()
        {
            return Err(Error::config("a client certificate needs both parameters, cert and key"));
        }
        if self.user.is_some() && self.password.is_none() {
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

    /// The server's URL without secrets.
    pub fn describe(&self) -> String {
        let user = self.user.as_ref().map(|user| format!("{user}@")).unwrap_or_default();
        match &self.address {
            Address::Tcp { host, port, tls } => {
                let secure = if tls.is_some() { "s" } else { "" };
                let host = if host.contains(':') { Cow::from(format!("[{host}]")) } else { host.into() };
                format!("redis{secure}://{user}{host}:{port}/{}", self.db)
            }
            Address::Unix(path) => format!("redis+unix://{user}{}?db={}", path.display(), self.db),
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

fn address(url: &Url) -> Result<Address, Error> {
    match url.scheme() {
        "redis" | "rediss" => {
            let host = match url.host_str() {
                Some(host) if !host.is_empty() => decoded(host, "the host")?,
                _ => return Err(Error::config("the Redis URL names no host: write redis://127.0.0.1/")),
            };
            let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
            let tls = (url.scheme() == "rediss").then(Tls::default);
            if tls.is_some() && !cfg!(feature = "tls") {
                return Err(Error::config("rediss:// needs the feature tls, which this build does not have"));
            }
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
            "{other}:// is no URL of a single Redis server: write redis://, rediss:// or redis+unix://"
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

fn misplaced_login() -> Error {
    Error::config(
        "the Redis URL cannot be read: it has an @ behind a /, ? or #. Percent-encode these in the user, the \
         password and the parameters (@ as %40, / as %2F, ? as %3F, # as %23, % as %25)",
    )
}

fn some_text(text: String) -> Option<String> {
    Some(text).filter(|text| !text.is_empty())
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
mod tests {
    use super::*;

    fn read(url: &str) -> RedisConfig {
        RedisConfig::from_url(url).unwrap()
    }

    fn refusal(url: &str) -> String {
        RedisConfig::from_url(url).unwrap_err().to_string()
    }

    #[test]
    fn urls_are_read_with_their_defaults() {
        let config = read("redis://127.0.0.1");
        assert_eq!(config.address, Address::Tcp { host: "127.0.0.1".into(), port: DEFAULT_PORT, tls: None });
        assert_eq!((config.db, config.namespace().as_str()), (0, "lock:"));
        assert!(config.user.is_none() && config.password.is_none() && config.scripting);

        let config = read("redis://[::1]:7000/3?namespace=a%26b:&label=web-1");
        assert_eq!(config.address, Address::Tcp { host: "::1".into(), port: 7000, tls: None });
        assert_eq!((config.db, config.namespace().as_str()), (3, "a&b:"));
        assert_eq!(config.label().unwrap().as_str(), "web-1");
        assert_eq!(config.describe(), "redis://[::1]:7000/3");

        let config = read("redis+unix:///run/my%20redis.sock?db=2&user=app&password=p%26w");
        assert_eq!(config.address, Address::Unix("/run/my redis.sock".into()));
        assert_eq!((config.db, config.password.unwrap().expose()), (2, "p&w"));
    }

    #[test]
    fn trap_44_special_characters_of_a_password_are_decoded_and_never_shown() {
        let config = read("redis://us%65r:p%40ss%2Fw%23r%25d+x@host:1/");
        assert_eq!(config.user.as_deref(), Some("user"));
        assert_eq!(config.password.as_ref().unwrap().expose(), "p@ss/w#r%d+x");
        let shown = format!("{config:?} {}", config.describe());
        assert!(!shown.contains("p@ss") && !shown.contains("p%40"), "{shown}");
        assert_eq!(read("redis://:only@host").user, None);
    }

    #[test]
    fn trap_44_a_url_that_cannot_be_read_is_not_repeated() {
        for bad in [
            "redis://u:se/cret@host",
            "redis://u:se#cret@host",
            "redis://u:12/secret@host",
            "redis://u:12?secret@host",
            "redis://u:12?se=cret@host",
            "redis://u:12/?db=secret@host",
            "redis://:12/secret@host/0",
            "redis://u:secret@ho st",
            "secret",
        ] {
            let message = refusal(bad);
            assert!(!message.contains("cret") && !message.contains("\"se\""), "{message}");
        }
        assert!(refusal("redis://u:se#cret@host").contains("%23"));
    }

    #[test]
    fn what_is_unknown_or_contradictory_is_refused_with_a_way_out() {
        for (url, word) in [
            ("redis://h?namspace=x", "namespace, db"),
            ("redis://h?acks=1", "known are"),
            ("redis://h/x", "not a number"),
            ("redis://h?scripting=maybe", "scripting=on or off"),
            ("redis://h?scripting=off", "allow_unfenced=1"),
            ("redis://h?allow_unfenced=1", "scripting=off"),
            ("redis://user@h", "no password"),
            ("redis://", "host"),
            ("redis+unix://run/x.sock", "three slashes"),
            ("http://h", "http://"),
            ("redis://h?ca=/x", "rediss://"),
            ("redis://h?namespace=a{b", "hash tag"),
            ("redis://h?label=a%20b", "label"),
        ] {
            let message = refusal(url);
            assert!(message.contains(word), "{url}: {message}");
        }
    }

    #[cfg(not(feature = "tls"))]
    #[test]
    fn tls_without_the_feature_is_refused() {
        assert!(refusal("rediss://h").contains("feature tls"));
    }

    #[cfg(feature = "tls")]
    #[test]
    fn tls_urls_name_their_files() {
        let config = read("rediss://h?ca=/a.pem&cert=/c.pem&key=/k.pem");
        let Address::Tcp { tls: Some(tls), .. } = &config.address else { panic!("no TLS") };
        assert_eq!(tls.ca.as_deref(), Some(std::path::Path::new("/a.pem")));
        assert_eq!(config.describe(), "rediss://h:6379/0");
        assert!(refusal("rediss://h?cert=/c.pem").contains("both"));
    }
}
