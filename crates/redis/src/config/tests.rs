//! Which URLs are read, how, and what is said of the others.

use super::*;

fn read(url: &str) -> RedisConfig {
    RedisConfig::from_url(url).unwrap()
}

fn server(config: &RedisConfig) -> Address {
    match &config.target {
        Target::Server(address) => address.clone(),
        Target::Sentinel(_) => panic!("{config:?} is no single server"),
    }
}

fn refusal(url: &str) -> String {
    RedisConfig::from_url(url).unwrap_err().to_string()
}

#[test]
fn urls_are_read_with_their_defaults() {
    let config = read("redis://127.0.0.1");
    assert_eq!(server(&config), Address::Tcp { host: "127.0.0.1".into(), port: DEFAULT_PORT, tls: None });
    assert_eq!((config.db, config.namespace().as_str()), (0, "lock:"));
    assert!(config.login.user.is_none() && config.login.password.is_none() && config.scripting);

    let config = read("redis://[::1]:7000/3?namespace=a%26b:&label=web-1");
    assert_eq!(server(&config), Address::Tcp { host: "::1".into(), port: 7000, tls: None });
    assert_eq!((config.db, config.namespace().as_str()), (3, "a&b:"));
    assert_eq!(config.label().unwrap().as_str(), "web-1");
    assert_eq!(config.describe(), "redis://[::1]:7000/3");

    let config = read("redis+unix:///run/my%20redis.sock?db=2&user=app&password=p%26w");
    assert_eq!(server(&config), Address::Unix("/run/my redis.sock".into()));
    assert_eq!((config.db, config.login.password.unwrap().expose()), (2, "p&w"));
}

#[test]
fn trap_44_special_characters_of_a_password_are_decoded_and_never_shown() {
    let config = read("redis://us%65r:p%40ss%2Fw%23r%25d+x@host:1/");
    assert_eq!(config.login.user.as_deref(), Some("user"));
    assert_eq!(config.login.password.as_ref().unwrap().expose(), "p@ss/w#r%d+x");
    let shown = format!("{config:?} {}", config.describe());
    assert!(!shown.contains("p@ss") && !shown.contains("p%40"), "{shown}");
    assert_eq!(read("redis://:only@host").login.user, None);
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
        ("redis://h?acks=x", "not a number"),
        ("redis://h?scripting=off&allow_unfenced=1&acks=1", "acks need scripts"),
        ("redis://h/x", "not a number"),
        ("redis://h?scripting=maybe", "scripting=on or off"),
        ("redis://h?scripting=off", "allow_unfenced=1"),
        ("redis://h?allow_unfenced=1", "scripting=off"),
        ("redis://user@h", "no password"),
        ("redis://", "host"),
        ("redis://a:1,b:2/", "redis+cluster://"),
        ("redis://u:p@a,b/", "redis+sentinel://"),
        ("redis+quorum://a,b,c", "redis+cluster://"),
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

#[test]
fn urls_of_sentinels_name_hosts_and_a_service() {
    let config = read("redis+sentinel://a,b:1,[::1]:2/orders%2Feu?db=3");
    let Target::Sentinel(sentinels) = &config.target else { panic!("no Sentinels") };
    let hosts: Vec<_> = sentinels.hosts.iter().map(Host::to_string).collect();
    assert_eq!(hosts, ["a:26379", "b:1", "[::1]:2"]);
    assert_eq!((sentinels.service.as_str(), config.db), ("orders/eu", 3));
    assert!(sentinels.login.password.is_none() && config.login.password.is_none());
    assert_eq!(read("redis+sentinel://a,b/orders/2").describe(), "redis+sentinel://a:26379,b:26379/orders/2");
    for (url, word) in [
        ("redis+sentinel://a,b", "no service"),
        ("redis+sentinel://a,b/?db=1", "no service"),
        ("redis+sentinel://a,b/orders/x", "not a number"),
        ("redis+sentinel://a,,b/orders", "host1:port1"),
        ("redis+sentinel://a/orders?sentinel_user=x", "sentinel_password"),
        ("redis+sentinel://app@a/orders", "no password"),
        ("redis+sentinel://a/orders?ca=/x", "rediss://"),
        ("redis://a?sentinel_password=x", "redis+sentinel://"),
        ("redis://a,b/", "redis+sentinel://"),
    ] {
        let message = refusal(url);
        assert!(message.contains(word), "{url}: {message}");
    }
}

#[test]
fn trap_44_the_logins_of_servers_and_sentinels_are_two_and_neither_is_shown() {
    let config = read(
        "redis+sentinel://us%65r:s%40cret,1@a,b/orders?sentinel_user=watch&sentinel_password=s%26cret+2",
    );
    let Target::Sentinel(sentinels) = &config.target else { panic!("no Sentinels") };
    let read =
        |login: &Login| (login.user.clone().unwrap(), login.password.clone().unwrap().expose().to_owned());
    assert_eq!(read(&config.login), ("user".to_owned(), "s@cret,1".to_owned()));
    assert_eq!(read(&sentinels.login), ("watch".to_owned(), "s&cret+2".to_owned()));
    let shown = format!("{config:?} {}", config.describe());
    assert!(!shown.contains("cret"), "{shown}");
    for bad in [
        "redis+sentinel://u:se/cret@a,b/orders",
        "redis+sentinel://u:secret",
        "redis+sentinel://u:12?secret@a,b/orders",
        "redis+sentinel://u:se#cret@a/orders",
    ] {
        let message = refusal(bad);
        assert!(!message.contains("cret"), "{message}");
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
    let Some(tls) = config.tls() else { panic!("no TLS") };
    assert_eq!(tls.ca.as_deref(), Some(std::path::Path::new("/a.pem")));
    assert_eq!(config.describe(), "rediss://h:6379/0");
    assert!(refusal("rediss://h?cert=/c.pem").contains("both"));
    let config = read("rediss+sentinel://a,b/orders?ca=/a.pem");
    assert_eq!(config.tls().unwrap().ca.as_deref(), Some(std::path::Path::new("/a.pem")));
    assert_eq!(config.describe(), "rediss+sentinel://a:26379,b:26379/orders/0");
    assert!(refusal("rediss+sentinel://a/orders?cert=/c.pem").contains("both"));
}
