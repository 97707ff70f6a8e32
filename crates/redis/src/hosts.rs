//! URLs that name several hosts, which no URL parser reads: takes the list out and leaves a URL with one host.
//! Knows nothing of what the hosts are.

use leasehold_core::Error;

/// More than anybody has; a longer list is a mistake.
const MOST_HOSTS: usize = 32;

/// A server of a list.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Host {
    pub(crate) name: String,
    pub(crate) port: u16,
}

impl std::fmt::Display for Host {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.name.contains(':') {
            write!(f, "[{}]:{}", self.name, self.port)
        } else {
            write!(f, "{}:{}", self.name, self.port)
        }
    }
}

/// The hosts of a URL like `scheme://user:password@a:1,b:2/rest`, each once, and the same URL with a host that
/// stands for all of them.
///
/// # Errors
/// `Config`; the message repeats nothing of the URL, since a login without its @ looks like a host.
pub(crate) fn split(text: &str, default_port: u16) -> Result<(String, Vec<Host>), Error> {
    let unreadable =
        |why: &str| Error::config(format!("the Redis URL {why}: write its hosts as host1:port1,host2:port2"));
    let (scheme, rest) = text.split_once("://").ok_or_else(|| unreadable("has no ://"))?;
    let (authority, rest) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
    let (login, list) = match authority.rsplit_once('@') {
        Some((login, list)) => (format!("{login}@"), list),
        None => (String::new(), authority),
    };
    let mut hosts = Vec::new();
    for part in list.split(',') {
        let (name, port) = divided(part).ok_or_else(|| unreadable("has a [ without its ]"))?;
        let port = match port {
            None => default_port,
            Some(text) => text.parse().map_err(|_| unreadable("has a port that is not a number"))?,
        };
        let name = percent_encoding::percent_decode_str(name)
            .decode_utf8()
            .map_err(|_| unreadable("has a host that is not UTF-8 after percent-decoding"))?;
        if name.is_empty() || port == 0 {
            return Err(unreadable("names no host where one is expected, or port 0"));
        }
        let host = Host { name: name.into_owned(), port };
        if !hosts.contains(&host) {
            hosts.push(host);
        }
    }
    if hosts.len() > MOST_HOSTS {
        return Err(unreadable("names more than 32 hosts"));
    }
    Ok((format!("{scheme}://{login}several{rest}"), hosts))
}

/// `None` for an address in brackets that do not close.
fn divided(part: &str) -> Option<(&str, Option<&str>)> {
    if let Some(rest) = part.strip_prefix('[') {
        let (name, after) = rest.split_once(']')?;
        return match after.strip_prefix(':') {
            Some(number) => Some((name, Some(number))),
            None => after.is_empty().then_some((name, None)),
        };
    }
    Some(match part.split_once(':') {
        Some((name, number)) => (name, Some(number)),
        None => (part, None),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hosts(text: &str) -> Vec<String> {
        split(text, 26_379).unwrap().1.iter().map(Host::to_string).collect()
    }

    #[test]
    fn hosts_are_read_with_and_without_ports() {
        assert_eq!(hosts("redis+sentinel://a/x"), ["a:26379"]);
        assert_eq!(
            hosts("redis+sentinel://u:p,w@a:1,b,[::1]:3,[::2],b:26379/x?y=1,2"),
            ["a:1", "b:26379", "[::1]:3", "[::2]:26379"]
        );
    }

    #[test]
    fn what_remains_is_a_url_with_one_host() {
        let (rest, _) = split("redis+sentinel://u:p%40w@a:1,b:2/x?y=1", 1).unwrap();
        assert_eq!(rest, "redis+sentinel://u:p%40w@several/x?y=1");
    }

    #[test]
    fn lists_that_cannot_be_read_are_refused_without_repeating_them() {
        let many = (0..40).map(|host| format!("secret{host}")).collect::<Vec<_>>().join(",");
        for bad in ["", "a,,b", ",a", "a:", "a:0", "a:99999", "user:secret", "[::1", "[::1]x:1", "%ff", &many]
        {
            let error = split(&format!("redis+sentinel://{bad}/x"), 1).unwrap_err().to_string();
            assert!(error.contains("host1:port1") && !error.contains("secret"), "{bad}: {error}");
        }
    }
}
