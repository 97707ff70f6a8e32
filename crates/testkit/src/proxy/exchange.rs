//! Which reply belongs to which request of one connection, and what is a push. Owns no I/O and no faults.

use std::collections::VecDeque;

use super::faults::Loss;
use crate::resp::decode_command;

/// Answered by one confirmation per channel: pushes in RESP3, arrays in RESP2.
const SUBSCRIPTIONS: [&str; 6] =
    ["SUBSCRIBE", "PSUBSCRIBE", "SSUBSCRIBE", "UNSUBSCRIBE", "PUNSUBSCRIBE", "SUNSUBSCRIBE"];
const MESSAGES: [&str; 3] = ["MESSAGE", "PMESSAGE", "SMESSAGE"];

/// What a client asked, as far as the proxy cares.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Request {
    /// In upper case.
    pub(super) command: String,
    arguments: usize,
    switches_to: Option<Protocol>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Protocol {
    Resp2,
    Resp3,
}

impl Request {
    pub(super) fn parse(frame: &[u8]) -> Self {
        let words = decode_command(frame);
        let command =
            words.first().map(|name| String::from_utf8_lossy(name).to_ascii_uppercase()).unwrap_or_default();
        let switches_to = match (command.as_str(), words.get(1).map(Vec::as_slice)) {
            ("HELLO", Some(b"3")) => Some(Protocol::Resp3),
            ("HELLO", Some(b"2")) | ("RESET", _) => Some(Protocol::Resp2),
            _ => None,
        };
        Self { command, arguments: words.len().saturating_sub(1), switches_to }
    }
}

/// What a frame from the server is.
#[derive(Debug)]
pub(super) enum Arrival {
    /// The reply to a request, with the loss planned for it.
    Reply(Option<Loss>),
    /// Confirms a subscription, with the loss planned for it.
    Confirmation(Option<Loss>),
    /// A published message.
    Message,
    /// Any other push.
    OtherPush,
}

#[derive(Debug)]
struct Awaited {
    command: String,
    /// Confirmations still to come; `None` for a plain reply.
    confirmations: Option<Confirmations>,
    loss: Option<Loss>,
}

impl Awaited {
    /// Whether it may be over, so that a frame which does not fit answers the request after it.
    fn is_complete(&self) -> bool {
        matches!(self.confirmations, Some(Confirmations::SomeMore { seen: true }))
    }
}

#[derive(Debug)]
enum Confirmations {
    Exactly(usize),
    /// `UNSUBSCRIBE` without arguments is confirmed once for each channel, at least once: nobody but the server
    /// knows how often.
    SomeMore {
        seen: bool,
    },
}

/// The requests of one connection that are not answered yet.
#[derive(Debug)]
pub(super) struct Exchange {
    awaited: VecDeque<Awaited>,
    protocol: Protocol,
    has_subscribed: bool,
}

impl Exchange {
    pub(super) fn new() -> Self {
        Self { awaited: VecDeque::new(), protocol: Protocol::Resp2, has_subscribed: false }
    }

    pub(super) fn sent(&mut self, request: &Request, loss: Option<Loss>) {
        self.protocol = request.switches_to.unwrap_or(self.protocol);
        let confirmations = SUBSCRIPTIONS.contains(&request.command.as_str()).then(|| {
            self.has_subscribed = true;
            match request.arguments {
                0 => Confirmations::SomeMore { seen: false },
                channels => Confirmations::Exactly(channels),
            }
        });
        self.awaited.push_back(Awaited { command: request.command.clone(), confirmations, loss });
    }

    pub(super) fn arrived(&mut self, frame: &[u8]) -> Arrival {
        let is_push = frame.first() == Some(&b'>');
        // In RESP2 messages look like replies, but come only on connections that subscribed.
        let may_be_push =
            self.protocol == Protocol::Resp2 && self.has_subscribed && frame.first() == Some(&b'*');
        if is_push || may_be_push {
            let kind = first_word(frame);
            if MESSAGES.contains(&kind.as_str()) {
                return Arrival::Message;
            }
            if SUBSCRIPTIONS.contains(&kind.as_str()) {
                return self.confirmed(&kind);
            }
            if is_push {
                return Arrival::OtherPush;
            }
        }
        Arrival::Reply(self.replied())
    }

    /// Without such a request the server itself ended a subscription.
    fn confirmed(&mut self, kind: &str) -> Arrival {
        while self.awaited.front().is_some_and(|awaited| awaited.is_complete() && awaited.command != kind) {
            self.awaited.pop_front();
        }
        let Some(Awaited { command, confirmations: Some(confirmations), loss }) = self.awaited.front_mut()
        else {
            return Arrival::OtherPush;
        };
        if command != kind {
            return Arrival::OtherPush;
        }
        let loss = loss.take();
        match confirmations {
            Confirmations::Exactly(1) => drop(self.awaited.pop_front()),
            Confirmations::Exactly(left) => *left -= 1,
            Confirmations::SomeMore { seen } => *seen = true,
        }
        Arrival::Confirmation(loss)
    }

    /// Takes the request that a plain reply answers; for a subscription that is a refusal.
    fn replied(&mut self) -> Option<Loss> {
        while self.awaited.front().is_some_and(Awaited::is_complete) {
            self.awaited.pop_front();
        }
        self.awaited.pop_front()?.loss
    }
}

/// The first string of an array or push, in upper case.
fn first_word(frame: &[u8]) -> String {
    let mut lines = frame.split(|byte| *byte == b'\n').skip(1);
    let Some(header) = lines.next() else { return String::new() };
    let word = match header.first() {
        Some(b'$') => lines.next().unwrap_or_default(),
        Some(b'+') => &header[1..],
        _ => return String::new(),
    };
    String::from_utf8_lossy(word).trim_end().to_ascii_uppercase()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resp::encode_command;

    fn exchange(commands: &[&[&str]]) -> Exchange {
        let mut exchange = Exchange::new();
        for command in commands {
            exchange.sent(&Request::parse(&encode_command(command)), Some(Loss::of_duplicate()));
        }
        exchange
    }

    /// One letter per frame: reply, confirmation, message, other push; upper case if a planned loss came with it.
    fn letters(exchange: &mut Exchange, frames: &[&str]) -> String {
        let letter = |frame: &&str| match exchange.arrived(frame.as_bytes()) {
            Arrival::Reply(loss) => {
                if loss.is_some() {
                    'R'
                } else {
                    'r'
                }
            }
            Arrival::Confirmation(loss) => {
                if loss.is_some() {
                    'C'
                } else {
                    'c'
                }
            }
            Arrival::Message => 'm',
            Arrival::OtherPush => 'o',
        };
        frames.iter().map(letter).collect()
    }

    const HELLO: &[&str] = &["HELLO", "3"];
    const MESSAGE: &str = ">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\nm\r\n";

    #[test]
    fn pushes_do_not_count_as_replies() {
        let mut exchange = exchange(&[HELLO, &["GET", "k"]]);
        let invalidation = ">2\r\n$10\r\ninvalidate\r\n*1\r\n$1\r\nk\r\n";
        assert_eq!(
            letters(&mut exchange, &["%0\r\n", MESSAGE, invalidation, "$1\r\nv\r\n", "+OK\r\n"]),
            "RmoRr"
        );
    }

    #[test]
    fn a_subscription_is_answered_by_one_push_per_channel_or_by_a_refusal() {
        let mut exchange = exchange(&[HELLO, &["SUBSCRIBE", "a", "b"], &["SSUBSCRIBE", "c"], &["PING"]]);
        let confirmed = ">3\r\n$9\r\nsubscribe\r\n$1\r\na\r\n:1\r\n";
        let frames = ["%0\r\n", confirmed, MESSAGE, confirmed, "-NOPERM\r\n", "+PONG\r\n"];
        assert_eq!(letters(&mut exchange, &frames), "RCmcRR");
    }

    #[test]
    fn a_subscription_that_the_server_ends_answers_nothing() {
        let mut exchange = exchange(&[HELLO, &["GET", "k"]]);
        let ended = ">3\r\n$12\r\nsunsubscribe\r\n$1\r\na\r\n:0\r\n";
        assert_eq!(letters(&mut exchange, &["%0\r\n", ended, "_\r\n"]), "RoR");
    }

    #[test]
    fn leaving_all_channels_is_confirmed_an_unknown_number_of_times() {
        let mut exchange = exchange(&[HELLO, &["UNSUBSCRIBE"], &["SUBSCRIBE", "a"], &["PING"]]);
        let left = ">3\r\n$11\r\nunsubscribe\r\n$1\r\na\r\n:0\r\n";
        let joined = ">3\r\n$9\r\nsubscribe\r\n$1\r\na\r\n:1\r\n";
        assert_eq!(letters(&mut exchange, &["%0\r\n", left, left, joined, "+PONG\r\n"]), "RCcCR");
    }

    #[test]
    fn in_resp2_messages_are_told_from_arrays_only_after_subscribing() {
        let message = &MESSAGE.replace('>', "*");
        let confirmed = "*3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n";
        let mut exchange = exchange(&[&["EVAL", "…", "0"]]);
        assert_eq!(letters(&mut exchange, &[message]), "R");
        exchange.sent(&Request::parse(&encode_command(&["SUBSCRIBE", "c"])), None);
        assert_eq!(letters(&mut exchange, &[confirmed, message]), "cm");
    }

    #[test]
    fn the_loss_comes_with_its_own_reply() {
        let mut exchange = Exchange::new();
        let request = Request::parse(&encode_command(&["GET", "k"]));
        exchange.sent(&request, None);
        exchange.sent(&request, Some(Loss::of_duplicate()));
        assert_eq!(letters(&mut exchange, &["_\r\n", "_\r\n"]), "rR");
    }
}
