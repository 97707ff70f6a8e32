//! What can go wrong between a request and its reply, and how users are told. Retries nothing.

use leasehold_core::{Error, ErrorKind};
use redis::RedisError;

use crate::reply::BadReply;

/// Why a command has no usable reply.
#[derive(Debug)]
pub(crate) enum Failure {
    /// It was certainly not executed: it never left this process.
    NotSent(Error),
    /// It was sent and no reply was read.
    ReplyLost(RedisError),
    /// The server answered with an error.
    Refused(Refusal),
    /// The reply has not the shape that was expected.
    BadReply,
}

/// An error of the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    /// The first word, in capitals.
    pub(crate) code: String,
    /// The rest.
    pub(crate) text: String,
}

impl From<BadReply> for Failure {
    fn from(_: BadReply) -> Self {
        Self::BadReply
    }
}

/// Codes that Redis before 7 hides in the text of a generic error when a script raises them.
const CODES_IN_TEXT: [&str; 13] = [
    "NOPERM",
    "WRONGTYPE",
    "OOM",
    "MISCONF",
    "NOREPLICAS",
    "READONLY",
    "LOADING",
    "MASTERDOWN",
    "BUSY",
    "CLUSTERDOWN",
    "BADFENCE",
    "NOSCRIPT",
    "CROSSSLOT",
];

impl Refusal {
    /// The server's error in what redis-rs reports; `None` when the server reported none.
    pub(crate) fn of(error: &RedisError) -> Option<Self> {
        if error.is_io_error() {
            return None;
        }
        let code = error.code()?;
        Some(Self::new(code, error.detail().unwrap_or_default()))
    }

    pub(crate) fn new(code: &str, text: &str) -> Self {
        let (code, text) = (cut(code), cut(text.trim()).to_owned());
        if code == "ERR" && text.starts_with("Key should be of string type") {
            // What DELEX says of the wrong type.
            return Self { code: "WRONGTYPE".to_owned(), text };
        }
        if code == "ERR" && text.starts_with("Error running script") {
            let words = || text.split(|c: char| !c.is_ascii_alphanumeric());
            if let Some(hidden) = CODES_IN_TEXT.iter().find(|code| words().any(|word| word == **code)) {
                return Self { code: (*hidden).to_owned(), text };
            }
        }
        Self { code: code.to_owned(), text }
    }

    /// Splits an error as a script sees it.
    pub(crate) fn from_line(line: &str) -> Self {
        let (code, text) = line.split_once(' ').unwrap_or((line, ""));
        // "ACL failure in script" begins with a word in capitals that is no code.
        let is_code = code != "ACL" && !code.is_empty() && code.bytes().all(|byte| byte.is_ascii_uppercase());
        if is_code { Self::new(code, text) } else { Self::new("ERR", line) }
    }

    /// The server does not know a command.
    pub(crate) fn is_unknown_command(&self) -> bool {
        self.code == "ERR" && self.text.to_ascii_lowercase().starts_with("unknown command")
    }

    /// The user may not do it.
    pub(crate) fn is_denied(&self) -> bool {
        // Redis 6.2 and 7.0 report a command that a script may not call without the code.
        self.code == "NOPERM"
            || (self.code == "ERR" && self.text.contains("ACL failure"))
            || (self.code == "ERR" && self.text.contains("can't run this command"))
            // redis-rs words a refused SELECT anew.
            || (self.code == "ERR" && self.text.contains("no permissions to run"))
    }

    /// This node is no primary, or not the one it was: another connection may find the right one.
    pub(crate) fn is_about_the_node(&self) -> bool {
        matches!(self.code.as_str(), "READONLY" | "MASTERDOWN")
    }

    /// The slot of the keys is not here, or not wholly: it is at another node of the cluster, or migrates there.
    pub(crate) fn is_about_the_slot(&self) -> bool {
        matches!(self.code.as_str(), "MOVED" | "ASK" | "TRYAGAIN" | "CLUSTERDOWN") || self.is_gone_in_script()
    }

    /// A key that a script has emptied while its slot migrates is at another node for the rest of the script.
    pub(crate) fn is_gone_in_script(&self) -> bool {
        self.code == "ERR" && self.text.contains("access a non local key")
    }

    /// The error for users, saying what to do next.
    pub(crate) fn into_error(self) -> Error {
        let (kind, message) = match self.code.as_str() {
            _ if self.is_denied() => (ErrorKind::Denied, self.denied()),
            "NOAUTH" => (
                ErrorKind::Denied,
                "the server wants a password: write redis://user:password@host, or redis://:password@host for \
                 the default user"
                    .to_owned(),
            ),
            "WRONGPASS" => (
                ErrorKind::Denied,
                format!("the server refuses the user or the password ({})", self.shown()),
            ),
            "DENIED" => (
                ErrorKind::Denied,
                "the server is in protected mode and takes local connections only: set a password and bind \
                 address on it"
                    .to_owned(),
            ),
            "BADFENCE" => (
                ErrorKind::Foreign,
                "the key of the fencing counter (~fence under the namespace) holds something else than a number \
                 below 2^53: another program writes it, or it was corrupted. Move that program to another \
                 namespace, then delete the key: tokens go on from the server's clock"
                    .to_owned(),
            ),
            "MOVED" | "ASK" | "CROSSSLOT" | "CLUSTERDOWN" | "TRYAGAIN" => (
                ErrorKind::Config,
                "the server is a node of a cluster: connect with redis+cluster:// instead".to_owned(),
            ),
            _ if self.is_scripting() => (ErrorKind::Config, self.without_scripts()),
            code => match advice(code) {
                Some(advice) => (ErrorKind::Unavailable, format!("{advice} ({})", self.shown())),
                None => (ErrorKind::Unavailable, format!("the server refused: {}", self.shown())),
            },
        };
        Error::new(kind, message)
    }

    fn is_scripting(&self) -> bool {
        let text = self.text.to_ascii_lowercase();
        self.is_unknown_command() && text.contains("eval")
    }

    fn denied(&self) -> String {
        if self.text.to_ascii_lowercase().contains("eval") {
            return self.without_scripts();
        }
        format!(
            "the server denies this user a command, key or channel ({}): leasehold doctor --acl prints the rights \
             that are needed",
            self.shown()
        )
    }

    fn without_scripts(&self) -> String {
        format!(
            "the server forbids scripts ({}): allow the commands EVAL and EVALSHA, or accept locks without \
             fencing tokens with scripting=off&allow_unfenced=1 in the URL",
            self.shown()
        )
    }

    /// The server's words, without what follows them about the script.
    pub(crate) fn shown(&self) -> String {
        // What follows is where it was in a script, or the arguments, an owner token perhaps among them.
        let text = self.text.split(" script: ").next().unwrap_or_default();
        let text = text.split(", with args beginning with").next().unwrap_or_default();
        format!("{} {}", self.code, text.trim_end_matches([',', '.'])).trim().to_owned()
    }
}

/// What a server says in an error is a line; what something else in its place says may be of any length.
fn cut(text: &str) -> &str {
    const LONGEST: usize = 1_024;
    &text[..text.floor_char_boundary(LONGEST)]
}

/// What an operator can do about a server that refuses to work.
fn advice(code: &str) -> Option<&'static str> {
    Some(match code {
        "OOM" => {
            "the server is out of memory, so no new lease can be written; releases and renewals still work: raise \
             maxmemory, or keep locks apart from cached data"
        }
        "MISCONF" => {
            "the server refuses every write, releases and renewals too, since it could not save its data: look at \
             its disk and log, or set stop-writes-on-bgsave-error to no"
        }
        "NOREPLICAS" => {
            "the server refuses every write, releases and renewals too, since too few replicas are connected: \
             bring them back, or lower min-replicas-to-write"
        }
        "READONLY" => "the server is a replica: connect to its primary",
        "MASTERDOWN" => "the server is a replica that has lost its primary: connect to the primary",
        "LOADING" => "the server is still loading its data: it will work once it has finished",
        "BUSY" => {
            "the server is busy with a script of another program: wait, or end that script with SCRIPT KILL"
        }
        _ => return None,
    })
}

impl Failure {
    /// The error for users.
    pub(crate) fn into_error(self) -> Error {
        match self {
            Self::NotSent(error) => error,
            Self::ReplyLost(source) => Error::new(
                ErrorKind::Unknown,
                "the request was sent and the connection lost before its reply, so whether it took effect is not \
                 known",
            )
            .with_source(source),
            Self::Refused(refusal) => refusal.into_error(),
            Self::BadReply => Error::new(
                ErrorKind::Unknown,
                "the server's reply is not one that Leasehold knows: is something between this process and the \
                 server, or another version of its scripts?",
            ),
        }
    }

    /// As [`Refusal::is_about_the_slot`].
    pub(crate) fn is_about_the_slot(&self) -> bool {
        matches!(self, Self::Refused(refusal) if refusal.is_about_the_slot())
    }

    /// The server's error code.
    pub(crate) fn code(&self) -> Option<&str> {
        match self {
            Self::Refused(refusal) => Some(&refusal.code),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(code: &str, text: &str) -> ErrorKind {
        Refusal::new(code, text).into_error().kind()
    }

    #[test]
    fn refusals_become_the_kind_that_says_whether_to_retry() {
        for code in ["OOM", "MISCONF", "NOREPLICAS", "READONLY", "LOADING", "MASTERDOWN", "BUSY", "ERR", "X"]
        {
            assert_eq!(kind(code, "…"), ErrorKind::Unavailable, "{code}");
        }
        for code in ["NOPERM", "NOAUTH", "WRONGPASS", "DENIED"] {
            assert_eq!(kind(code, "…"), ErrorKind::Denied, "{code}");
        }
        for code in ["MOVED", "CROSSSLOT", "CLUSTERDOWN"] {
            assert_eq!(kind(code, "…"), ErrorKind::Config, "{code}");
        }
        assert_eq!(kind("ERR", "User app has no permissions to run the 'select' command"), ErrorKind::Denied);
        assert_eq!(kind("BADFENCE", "…"), ErrorKind::Foreign);
    }

    #[test]
    fn codes_are_found_where_redis_6_hides_them() {
        let hidden =
            "Error running script (call to f_12): @user_script:36: OOM command not allowed when used memory";
        assert_eq!(Refusal::new("ERR", hidden).code, "OOM");
        let acl = "Error running script (call to f_12): @user_script:5: The user executing the script can't run \
                   this command or subcommand";
        assert_eq!(kind("ERR", acl), ErrorKind::Denied);
    }

    #[test]
    fn forbidden_scripts_name_the_way_out() {
        for (code, text) in [
            ("ERR", "unknown command 'EVALSHA', with args beginning with: "),
            ("NOPERM", "User app has no permissions to run the 'evalsha' command"),
        ] {
            let error = Refusal::new(code, text).into_error();
            assert!(error.to_string().contains("scripting=off"), "{error}");
        }
    }

    #[test]
    fn messages_leave_out_where_in_a_script_it_happened() {
        let text =
            "Operation against a key holding the wrong kind of value script: 3b3f, on @user_script:12.";
        assert_eq!(
            Refusal::new("WRONGTYPE", text).shown(),
            "WRONGTYPE Operation against a key holding the wrong kind of value"
        );
    }

    #[test]
    fn arguments_are_not_repeated() {
        let text = "unknown command 'EVALSHA', with args beginning with: 'e0e1' '3' 'lock:OOM' 'secret@web' ";
        let error = Refusal::new("ERR", text).into_error();
        assert!(error.kind() == ErrorKind::Config && !error.to_string().contains("secret"), "{error}");
    }

    #[test]
    fn errors_as_scripts_see_them_are_split() {
        assert_eq!(Refusal::from_line("NOPERM no").code, "NOPERM");
        assert_eq!(Refusal::from_line("ACL failure in script: no").code, "ERR");
    }
}
