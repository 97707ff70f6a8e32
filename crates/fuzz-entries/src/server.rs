//! A whole Redis store against a server that lies: it greets as it should, unless told to lie there too, and answers
//! everything else with what the fuzzer makes up, then hangs up.

use std::cell::OnceCell;
use std::sync::Arc;
use std::time::Duration;

use leasehold_core::store::{
    AcquireReply, AcquireRequest, BreakMode, EventSink, QueueRequest, ReleaseRequest, RenewRequest,
    StoreEvent, Ticket,
};
use leasehold_core::{Clock, Error, FencingToken, Label, Name, OwnerToken, Store, SystemClock};
use leasehold_redis::{RedisConfig, RedisStore};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::runtime::Runtime;

use crate::assert_sayable;

/// A question that is not answered is given up after this, as the engine does after a second.
const PATIENCE: Duration = Duration::from_millis(5);
/// Nothing may take this long.
const HANGS: Duration = Duration::from_secs(20);
const OWNER: &str = "MDEyMzQ1Njc4OWFiY2RlZg@fuzz";
const GREETING: &[u8] =
    b"%5\r\n+server\r\n+redis\r\n+version\r\n+7.0.15\r\n+proto\r\n:3\r\n+mode\r\n+standalone\r\n\
+role\r\n+master\r\n";

struct World {
    runtime: Runtime,
    listener: UnixListener,
    url: String,
    _folder: tempfile::TempDir,
}

thread_local! {
    static WORLD: OnceCell<World> = const { OnceCell::new() };
}

impl World {
    fn new() -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("server");
        let listener = runtime.block_on(async { UnixListener::bind(&path) }).unwrap();
        Self { runtime, listener, url: format!("redis+unix://{}", path.display()), _folder: folder }
    }
}

/// The first byte says what is asked first and whether the greeting is a lie; then come the lies, each behind a byte
/// with its length.
pub fn lying_server(data: &[u8]) {
    let Some((&first, lies)) = data.split_first() else { return };
    WORLD.with(|world| {
        let world = world.get_or_init(World::new);
        let (lies_at_once, start) = (first & 0x80 != 0, usize::from(first & 0x7f));
        world.runtime.block_on(async {
            let serving = serve(&world.listener, Lies { rest: lies, at_once: lies_at_once });
            let asking = tokio::time::timeout(HANGS, ask(&world.url, start));
            tokio::select! {
                biased;
                asked = asking => asked.expect("it hangs"),
                () = serving => unreachable!("the server serves for ever"),
            }
        });
    });
}

/// What is left to be said.
struct Lies<'a> {
    rest: &'a [u8],
    at_once: bool,
}

impl Lies<'_> {
    /// The next lie; `None` when there are no more.
    fn next(&mut self) -> Option<&[u8]> {
        let (&length, rest) = self.rest.split_first()?;
        let (lie, rest) = rest.split_at(usize::from(length).min(rest.len()));
        self.rest = rest;
        Some(lie)
    }
}

async fn serve(listener: &UnixListener, mut lies: Lies<'_>) {
    loop {
        let Ok((stream, _)) = listener.accept().await else { continue };
        // One connection after the other: a second one waits until the first is closed.
        converse(stream, &mut lies).await;
    }
}

async fn converse(mut stream: UnixStream, lies: &mut Lies<'_>) {
    let mut received = Vec::new();
    loop {
        while let Some((words, length)) = request(&received) {
            let honest = if lies.at_once { None } else { honest_reply(&words) };
            let reply = match (honest, lies.next()) {
                (Some(honest), _) => honest,
                (None, Some(lie)) => lie.to_vec(),
                (None, None) => return,
            };
            received.drain(..length);
            if stream.write_all(&reply).await.is_err() {
                return;
            }
        }
        match stream.read_buf(&mut received).await {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
    }
}

/// What a good server says while a connection is made.
fn honest_reply(words: &[Vec<u8>]) -> Option<Vec<u8>> {
    let is_probe = || words.get(3).is_some_and(|key| key.ends_with(b"~probe"));
    match words.first()?.as_slice() {
        b"HELLO" => Some(GREETING.to_vec()),
        b"TIME" => Some(b"*2\r\n$10\r\n1764440000\r\n$1\r\n7\r\n".to_vec()),
        b"SUBSCRIBE" => {
            let channel = words.get(1)?;
            let mut reply = format!(">3\r\n+subscribe\r\n${}\r\n", channel.len()).into_bytes();
            reply.extend(channel);
            reply.extend(b"\r\n:1\r\n");
            Some(reply)
        }
        b"EVALSHA" | b"EVAL" if is_probe() => Some(b"*0\r\n".to_vec()),
        b"INFO" if words.len() > 1 => Some(b"$14\r\nmaxmemory:0\r\nx\r\n".to_vec()),
        _ => None,
    }
}

/// The words of the first request, and how many bytes it has. Clients send arrays of texts only.
fn request(bytes: &[u8]) -> Option<(Vec<Vec<u8>>, usize)> {
    let mut at = 0;
    let number = |sign: u8, at: &mut usize| -> Option<usize> {
        let end = bytes.get(*at..)?.windows(2).position(|two| two == b"\r\n")? + *at;
        assert_eq!(bytes[*at], sign, "no request: {:?}", String::from_utf8_lossy(bytes));
        let text = std::str::from_utf8(&bytes[*at + 1..end]).unwrap();
        *at = end + 2;
        Some(text.parse().unwrap())
    };
    let count = number(b'*', &mut at)?;
    let mut words = Vec::new();
    for _ in 0..count {
        let length = number(b'$', &mut at)?;
        words.push(bytes.get(at..at + length)?.to_vec());
        bytes.get(at + length..at + length + 2)?;
        at += length + 2;
    }
    Some((words, at))
}

struct Deaf;

impl EventSink for Deaf {
    fn event(&self, event: StoreEvent) {
        if let StoreEvent::Granted { fencing_token, .. } = event {
            assert_in_range(fencing_token);
        }
    }
}

fn assert_in_range(token: FencingToken) {
    assert!(FencingToken::new(token.get()).is_some(), "{token:?}");
}

async fn ask(url: &str, start: usize) {
    let config = RedisConfig::from_url(url).unwrap();
    let connecting = tokio::time::timeout(PATIENCE * 3, RedisStore::connect(config)).await;
    let Ok(connected) = connecting else { return };
    let store = match connected {
        Ok(store) => store,
        Err(error) => return check(&error),
    };
    let sink: Arc<dyn EventSink> = Arc::new(Deaf);
    store.attach(Arc::downgrade(&sink));
    for step in 0..OPERATIONS {
        let done = tokio::time::timeout(PATIENCE, operation(&store, (start + step) % OPERATIONS)).await;
        // No answer at all, as at the end of the lies.
        if done.is_err() {
            break;
        }
    }
}

const OPERATIONS: usize = 8;

async fn operation(store: &RedisStore, number: usize) {
    let (name, owner) = (Name::new("job").unwrap(), OwnerToken::parse(OWNER).unwrap());
    let ttl = Duration::from_secs(3);
    let not_after = SystemClock.now().after(Duration::from_secs(1));
    let error = match number {
        0 | 1 => {
            let queue = (number == 1).then_some(QueueRequest { ticket: Some(Ticket(7)), poll_interval: ttl });
            let request = AcquireRequest { name: &name, owner: &owner, ttl, queue, not_after };
            let reply = store.acquire(request).await;
            if let Ok(AcquireReply::Granted { fencing_token }) = &reply {
                assert_in_range(*fencing_token);
            }
            if let Ok(AcquireReply::Held(held)) = &reply {
                assert_shown(&held.holder.to_string());
            }
            reply.err()
        }
        2 => store.release(ReleaseRequest { name: &name, owner: &owner, keep_for: None }).await.err(),
        3 => {
            let request = RenewRequest { name: name.clone(), owner: owner.clone(), ttl };
            let replies = store.renew(&[request.clone(), request]).await;
            assert_eq!(replies.len(), 2, "as many replies as requests");
            replies.into_iter().find_map(Result::err)
        }
        4 => {
            let seen = store.inspect(&name).await;
            if let Ok(Some(seen)) = &seen {
                seen.waiters.iter().for_each(|waiter| assert_shown(waiter));
                seen.holder.iter().for_each(|holder| assert_shown(&holder.to_string()));
            }
            seen.err()
        }
        5 => store.list("j", 3).await.err(),
        6 => store.break_lease(&name, BreakMode::Notice, &Label::new("ops").unwrap()).await.err(),
        _ => match store.diagnose().await {
            Ok(findings) => {
                for finding in findings {
                    assert_no_secret(&finding.message);
                }
                None
            }
            Err(error) => Some(error),
        },
    };
    if let Some(error) = error {
        check(&error);
    }
}

fn check(error: &Error) {
    let said = error.to_string();
    assert_sayable(&said);
    assert_shown(&said);
}

fn assert_shown(text: &str) {
    assert_no_secret(text);
    assert_sayable(text);
}

fn assert_no_secret(text: &str) {
    let (secret, _) = OWNER.split_once('@').unwrap();
    assert!(!text.contains(secret), "an owner token in {text:?}");
}
