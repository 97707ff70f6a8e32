//! Asking Sentinels: which server is the primary of a service, and being told when that changes. Connects to no
//! server itself; which connection is given up is decided by the supervisor.

use std::sync::Arc;
use std::time::Duration;

use leasehold_core::{Error, ErrorKind};
use redis::aio::{AsyncPushSender, MultiplexedConnection, SendError};
use redis::{PushInfo, PushKind, Value};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout, timeout_at};

use crate::config::{Address, Sentinels};
use crate::failure::Refusal;
use crate::handshake::{Driver, command, say_hello};
use crate::hosts::Host;
use crate::random::jittered;
use crate::reply;
use crate::shared::Shared;
use crate::transport;

/// A Sentinel that has not answered for this long, connecting included, is left out.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);
/// Once a majority has answered, the others get this much longer: one of them may know of a newer failover.
const REST_TIMEOUT: Duration = Duration::from_millis(50);
/// How often a Sentinel whose news are listened to is asked, in case its message was lost.
const ASK_INTERVAL: Duration = Duration::from_secs(3);
/// Pauses before listening to a Sentinel again that could not be reached.
const LISTEN_PAUSE: Duration = Duration::from_secs(1);
/// Where Sentinels tell that a primary has changed.
const NEWS: &str = "+switch-master";

/// What one Sentinel says.
enum Answer {
    /// Where the primary is, and in which of the service's configurations; a failover begins a newer one.
    Primary { place: Host, epoch: u64 },
    /// It does not monitor the service, but these.
    UnknownService { known: Vec<String> },
    /// It is a server of another kind.
    NoSentinel,
}

/// Where the primary of the service is now: as the Sentinel says that knows the newest configuration, since one
/// that was cut off goes on naming the old primary. Where several know it and name different addresses (of the same
/// server, or they do not tell which configuration it is), the one that most name counts, and `used` before others.
///
/// # Errors
/// `Unavailable` when none tells in time, `Denied` and `Config` when that will not change by itself.
pub(crate) async fn find_primary(sentinels: &Sentinels, used: Option<&Address>) -> Result<Address, Error> {
    let mut asking = JoinSet::new();
    for host in &sentinels.hosts {
        let (sentinels, host) = (sentinels.clone(), host.clone());
        asking.spawn(async move {
            let answer = timeout(ANSWER_TIMEOUT, ask(&sentinels, &host)).await;
            let answer = answer.unwrap_or_else(|_| Err(no_answer()));
            (host, answer)
        });
    }
    let majority = sentinels.hosts.len() / 2 + 1;
    let mut answers = Vec::new();
    let mut ends = Instant::now() + ANSWER_TIMEOUT * 2;
    while let Ok(Some(answer)) = timeout_at(ends, asking.join_next()).await {
        // A task that panicked has said nothing.
        answers.extend(answer);
        let told = answers.iter().filter(|(_, answer)| matches!(answer, Ok(Answer::Primary { .. }))).count();
        if told >= majority {
            ends = ends.min(Instant::now() + REST_TIMEOUT);
        }
    }
    verdict(sentinels, answers, used)
}

fn no_answer() -> Error {
    Error::new(ErrorKind::Unavailable, format!("no answer within {ANSWER_TIMEOUT:?}"))
}

/// The newest place that was told, or why there is none.
fn verdict(
    sentinels: &Sentinels,
    answers: Vec<(Host, Result<Answer, Error>)>,
    used: Option<&Address>,
) -> Result<Address, Error> {
    let places: Vec<_> = answers
        .iter()
        .filter_map(|(_, answer)| match answer {
            Ok(Answer::Primary { place, epoch }) => Some((*epoch, sentinels.address(place))),
            _ => None,
        })
        .collect();
    let weight = |told: &(u64, Address)| {
        let same = places.iter().filter(|other| *other == told).count();
        (told.0, same, used == Some(&told.1))
    };
    if let Some((_, address)) = places.iter().max_by_key(|told| weight(told)) {
        return Ok(address.clone());
    }
    let service = &sentinels.service;
    let (mut wrong, mut reasons, mut denied) = (0, Vec::new(), false);
    for (host, answer) in answers {
        reasons.push(match answer {
            Ok(Answer::UnknownService { known }) => {
                wrong += 1;
                format!("{host} does not know this service, but {}", listed(&known))
            }
            Ok(Answer::NoSentinel) => {
                wrong += 1;
                format!("{host} is no Sentinel (a server without Sentinels is written redis://{host}/)")
            }
            Ok(Answer::Primary { .. }) => continue,
            Err(error) => {
                denied |= error.kind() == ErrorKind::Denied;
                format!("{host}: {error}")
            }
        });
    }
    // While some cannot be reached, they may know better.
    let kind = match wrong {
        _ if denied => ErrorKind::Denied,
        wrong if wrong > sentinels.hosts.len() / 2 => ErrorKind::Config,
        _ => ErrorKind::Unavailable,
    };
    let message = format!("no Sentinel tells where the primary of {service:?} is: {}", reasons.join("; "));
    Err(Error::new(kind, message))
}

fn listed(services: &[String]) -> String {
    let names: Vec<_> = services.iter().map(|name| format!("{name:?}")).collect();
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}

/// Asks one Sentinel on a connection of its own.
async fn ask(sentinels: &Sentinels, host: &Host) -> Result<Answer, Error> {
    let (link, driver) = connect(sentinels, host, None).await?;
    tokio::select! {
        answer = ask_on(&link, &sentinels.service) => answer,
        () = driver => Err(Error::new(ErrorKind::Unavailable, "it closed the connection")),
    }
}

async fn connect(
    sentinels: &Sentinels,
    host: &Host,
    news: Option<News>,
) -> Result<(MultiplexedConnection, Driver), Error> {
    let stream = transport::open(&sentinels.address(host)).await?;
    say_hello(stream, &sentinels.login, 0, news).await.map_err(|error| match error.kind() {
        ErrorKind::Denied if sentinels.login.password.is_none() => Error::new(
            ErrorKind::Denied,
            "this Sentinel wants a password: write sentinel_password=… in the URL, and sentinel_user=… if it has users",
        ),
        ErrorKind::Denied => error.context("sentinel_password or sentinel_user is not right"),
        _ => error,
    })
}

async fn ask_on(link: &MultiplexedConnection, service: &str) -> Result<Answer, Error> {
    let mut questions = redis::pipe();
    questions.add_command(command(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", service]));
    questions.add_command(command(&["SENTINEL", "MASTER", service]));
    let replies = send(link, &questions).await?;
    let [place, about] = replies.as_slice() else { return Err(unreadable()) };
    match Refusal::in_value(place) {
        Some(refusal) if refusal.is_unknown_command() => return Ok(Answer::NoSentinel),
        Some(refusal) => return Err(refused(refusal)),
        None => {}
    }
    match reply::array(place).map_err(|_| unreadable())? {
        [name, port] => {
            let read = |value| reply::text(value).map_err(|_| unreadable());
            let port = read(port)?.parse().map_err(|_| unreadable())?;
            // A user who may not ask for it, or a server that does not tell: any other answer counts more.
            let epoch = reply::field(about, "config-epoch").and_then(|epoch| reply::number(epoch).ok());
            let place = Host { name: read(name)?.to_owned(), port };
            Ok(Answer::Primary { place, epoch: epoch.unwrap_or(0) })
        }
        _ => Ok(Answer::UnknownService { known: services(link).await }),
    }
}

async fn send(link: &MultiplexedConnection, questions: &redis::Pipeline) -> Result<Vec<Value>, Error> {
    let sent = link.clone().send_packed_commands(questions, 0, questions.len()).await;
    sent.map_err(|error| Error::new(ErrorKind::Unavailable, format!("the connection was lost ({error})")))
}

/// The services a Sentinel knows; none where it does not tell.
async fn services(link: &MultiplexedConnection) -> Vec<String> {
    let mut question = redis::pipe();
    question.add_command(command(&["SENTINEL", "MASTERS"]));
    let replies = send(link, &question).await.unwrap_or_default();
    let masters = replies.first().and_then(|masters| reply::array(masters).ok()).unwrap_or_default();
    let name = |master| Some(reply::text(reply::field(master, "name")?).ok()?.to_owned());
    masters.iter().filter_map(name).collect()
}

/// What the doctor learns of a Sentinel.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    /// Where it says the primary is; `None` when it does not know the service.
    pub(crate) place: Option<Host>,
    /// How many other Sentinels it knows.
    pub(crate) others: Option<u64>,
    /// Why it could not fail over.
    pub(crate) no_quorum: Option<String>,
}

/// Asks a Sentinel about itself. The caller limits the time.
pub(crate) async fn examine(sentinels: &Sentinels, host: &Host) -> Result<Seen, Error> {
    let (link, driver) = connect(sentinels, host, None).await?;
    let asking = async {
        let place = match ask_on(&link, &sentinels.service).await? {
            Answer::Primary { place, .. } => place,
            Answer::UnknownService { .. } => return Ok(Seen::default()),
            Answer::NoSentinel => return Err(Error::config("it is no Sentinel")),
        };
        let mut questions = redis::pipe();
        questions.add_command(command(&["SENTINEL", "MASTER", &sentinels.service]));
        questions.add_command(command(&["SENTINEL", "CKQUORUM", &sentinels.service]));
        let replies = send(&link, &questions).await?;
        let [about, quorum] = replies.as_slice() else { return Err(unreadable()) };
        let others = reply::field(about, "num-other-sentinels").and_then(|others| reply::number(others).ok());
        // A user who may not ask is told nothing.
        let no_quorum = Refusal::in_value(quorum).filter(|refusal| refusal.code == "NOQUORUM");
        Ok(Seen { place: Some(place), others, no_quorum: no_quorum.map(|refusal| refusal.shown()) })
    };
    tokio::select! {
        seen = asking => seen,
        () = driver => Err(Error::new(ErrorKind::Unavailable, "it closed the connection")),
    }
}

fn refused(refusal: Refusal) -> Error {
    if refusal.is_denied() {
        return Error::new(
            ErrorKind::Denied,
            format!(
                "this Sentinel denies its user the question ({}): allow +sentinel|get-master-addr-by-name, \
                 +sentinel|master and +subscribe with &{NEWS}",
                refusal.shown()
            ),
        );
    }
    refusal.into_error()
}

fn unreadable() -> Error {
    Error::new(ErrorKind::Unavailable, "its answer is not one of a Sentinel")
}

/// Listens to every Sentinel until the returned set is dropped, and tells `Shared::primary` what is news.
pub(crate) fn listen(shared: &Arc<Shared>, sentinels: &Sentinels) -> JoinSet<()> {
    let mut listeners = JoinSet::new();
    for host in &sentinels.hosts {
        listeners.spawn(listen_to(Arc::clone(shared), sentinels.clone(), host.clone()));
    }
    listeners
}

async fn listen_to(shared: Arc<Shared>, sentinels: Sentinels, host: Host) {
    loop {
        if let Err(error) = follow(&shared, &sentinels, &host).await {
            tracing::debug!(sentinel = %host, %error, "not listening to this Sentinel for a while");
        }
        tokio::time::sleep(jittered(LISTEN_PAUSE)).await;
    }
}

/// Listens on one connection until it ends. Whatever a Sentinel says, all are asked before anything is done: it
/// may have been cut off itself.
async fn follow(shared: &Shared, sentinels: &Sentinels, host: &Host) -> Result<(), Error> {
    let heard = Arc::new(Notify::new());
    let opened = timeout(ANSWER_TIMEOUT, connect(sentinels, host, Some(News(Arc::clone(&heard)))));
    let (mut link, driver) = opened.await.map_err(|_| no_answer())??;
    let listening = async {
        // A user without the right to listen is still asked from time to time.
        let subscribed = timeout(ANSWER_TIMEOUT, link.subscribe(NEWS)).await.map_err(|_| no_answer())?;
        if let Err(error) = subscribed {
            tracing::debug!(sentinel = %host, %error, "this Sentinel tells no news");
        }
        loop {
            let asked = timeout(ANSWER_TIMEOUT, ask_on(&link, &sentinels.service)).await;
            match asked.map_err(|_| no_answer())?? {
                Answer::Primary { place, .. } if shared.primary.used() == Some(sentinels.address(&place)) => {
                }
                Answer::Primary { .. } => tell(shared, sentinels).await,
                // Others may know it.
                Answer::UnknownService { .. } | Answer::NoSentinel => return Ok(()),
            }
            let _news_or_time = timeout(ASK_INTERVAL, heard.notified()).await;
        }
    };
    tokio::select! {
        ended = listening => ended,
        () = driver => Err(Error::new(ErrorKind::Unavailable, "it closed the connection")),
    }
}

async fn tell(shared: &Shared, sentinels: &Sentinels) {
    if let Ok(place) = find_primary(sentinels, shared.primary.used().as_ref()).await {
        shared.primary.is_named(&place);
    }
}

/// Takes the messages of a Sentinel: that one came is enough, since it is asked then.
struct News(Arc<Notify>);

impl AsyncPushSender for News {
    fn send(&self, push: PushInfo) -> Result<(), SendError> {
        if push.kind == PushKind::Message {
            self.0.notify_one();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Login;

    fn sentinels(count: u16) -> Sentinels {
        let hosts = (0..count).map(|port| Host { name: "s".into(), port }).collect();
        Sentinels { hosts, service: "orders".into(), login: Login::default(), tls: None }
    }

    fn told(port: u16, epoch: u64) -> Answer {
        Answer::Primary { place: Host { name: "p".into(), port }, epoch }
    }

    fn unknown() -> Answer {
        Answer::UnknownService { known: vec!["billing".into()] }
    }

    fn of<const N: usize>(answers: [Result<Answer, Error>; N]) -> Result<Address, Error> {
        let sentinels = sentinels(u16::try_from(N).unwrap());
        let used = sentinels.address(&Host { name: "p".into(), port: 7 });
        verdict(&sentinels, sentinels.hosts.clone().into_iter().zip(answers).collect(), Some(&used))
    }

    #[test]
    fn the_newest_configuration_counts_not_the_first_answer() {
        let place = of([Ok(told(1, 3)), Ok(told(2, 4)), Ok(told(1, 3)), Err(no_answer())]).unwrap();
        assert_eq!(place.to_string(), "p:2");
        assert_eq!(of([Ok(unknown()), Ok(told(1, 0)), Ok(Answer::NoSentinel)]).unwrap().to_string(), "p:1");
    }

    #[test]
    fn sentinels_that_write_the_same_server_differently_move_nobody() {
        // Host names here, addresses there; or a user who may not ask for the configuration.
        assert_eq!(of([Ok(told(1, 3)), Ok(told(7, 3))]).unwrap().to_string(), "p:7");
        assert_eq!(of([Ok(told(7, 3)), Ok(told(1, 3))]).unwrap().to_string(), "p:7");
        assert_eq!(of([Ok(told(1, 0)), Ok(told(7, 0)), Ok(told(1, 0))]).unwrap().to_string(), "p:1");
    }

    #[test]
    fn a_service_nobody_knows_is_a_mistake_unless_the_others_cannot_be_asked() {
        let error = of([Ok(unknown()), Ok(unknown()), Err(no_answer())]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config);
        assert!(
            error.to_string().contains("\"orders\"") && error.to_string().contains("\"billing\""),
            "{error}"
        );
        let error = of([Ok(unknown()), Err(no_answer()), Err(no_answer())]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        let error = of([Ok(Answer::NoSentinel)]).unwrap_err();
        assert!(error.kind() == ErrorKind::Config && error.to_string().contains("redis://s:0/"), "{error}");
    }
}
