//! `leasehold watch`: a live view of names, holders, waiters, and of leases that end. It asks the store what
//! `ls` asks, again and again; nothing is changed.

mod board;
mod choices;
mod screen;
mod view;

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::time::{Duration, Instant};

use clap::Args;
use leasehold::{Client, Listing};
use ratatui::crossterm::event::{self, Event};
use rustix::process::{Signal, kill_current_process_group};
use tokio::signal::unix::{Signal as Signals, SignalKind, signal};
use tokio::sync::mpsc;

use crate::args::StoreArgs;
use crate::connect::{connect_to_look, namespace, url};
use crate::durations;
use crate::failure::{Failure, SIGNAL_BASE, UNAVAILABLE};
use crate::output::colours;
use board::Board;
use choices::{Choices, Wish};
use screen::Screen;
use view::View;

/// A store that is reached at once, or not at all, is told of without taking the terminal over.
const QUICK: Duration = Duration::from_millis(200);
/// How often times move on between two looks at the store.
const REDRAW: Duration = Duration::from_millis(250);
/// A store that takes longer than this is in trouble.
const PATIENCE: Duration = Duration::from_secs(2);
const SHORTEST_INTERVAL: Duration = Duration::from_millis(100);
const LONGEST_INTERVAL: Duration = Duration::from_secs(3_600);

/// Watch who holds what, live
///
/// Shows names, holders, how long they hold and have left, who waits, and how leases ended: released, handed
/// over, expired, broken. It looks at the store once per interval, so what begins and ends in between is not
/// seen. A name that was taken before the watch began is shown as held for at least (12s+) the time watched.
#[derive(Args, Debug)]
#[command(after_help = HELP)]
pub(crate) struct WatchArgs {
    /// Only names that start with this
    #[arg(default_value = "", hide_default_value = true)]
    prefix: String,
    /// Time between two looks at the store, 100ms to 1h
    #[arg(long, value_name = "DURATION", allow_hyphen_values = true, value_parser = durations::between(SHORTEST_INTERVAL, LONGEST_INTERVAL), default_value = "1s")]
    interval: Duration,
    /// The most names to look at
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..))]
    limit: u32,
}

const HELP: &str = "\
Keys:
  q, Ctrl-C  quit                   n h a r w  sort by name, holder, age, time left, waiters;
  /          filter; Esc clears                again for the other way round
  l          only leases lost       arrows, page keys, Home, End, j, k  scroll

How leases ended, as far as can be seen from outside:
  released     gone before its time: given back, or removed by break --now, a flush or eviction
  handed over  gone before its time, and a waiter has the name
  EXPIRED      its time ran out and nobody had renewed it: its holder crashed or was cut off
  BROKEN       with leasehold break

Examples:
  leasehold watch                        everything
  leasehold watch order: --interval 5s   names that start with order:, every five seconds
  leasehold ls --json                    for scripts";

/// Shows the view until the user quits it.
pub(crate) async fn watch(store: &StoreArgs, args: &WatchArgs) -> Result<u8, Failure> {
    url(store)?;
    namespace(store)?;
    if !screen::is_possible() {
        return Err(Failure::usage(
            "watch needs a terminal for its input and output: elsewhere use leasehold ls --json",
        ));
    }
    let mut watch = Watch::new(store, args)?;
    let quick = tokio::time::sleep(QUICK);
    tokio::select! {
        answer = watch.answer.wait() => watch.take(answer)?,
        () = quick => {}
    }
    let mut screen = Screen::open().map_err(|error| broken_terminal(&error))?;
    watch.run(&mut screen).await
}

/// One watch of one store.
struct Watch<'a> {
    store: &'a StoreArgs,
    args: &'a WatchArgs,
    board: Board,
    choices: Choices,
    client: Option<Client>,
    /// The store as messages name it. Its URL may hold a password.
    reached: String,
    answer: Answer<'a>,
    asked_at: Instant,
    /// Since when the store gives no answer, and what it said last.
    trouble: Option<(Instant, String)>,
    page: usize,
    signals: [(u8, Signals); 3],
    continued: Signals,
}

/// What a look at the store brought.
struct Look {
    client: Option<Client>,
    listing: Result<Listing, Failure>,
}

/// A look at the store, while it is under way.
struct Answer<'a>(Option<Pin<Box<dyn Future<Output = Look> + 'a>>>);

impl Answer<'_> {
    /// Waits for it; for ever if nothing is under way.
    async fn wait(&mut self) -> Look {
        match &mut self.0 {
            Some(look) => look.await,
            None => std::future::pending().await,
        }
    }
}

impl<'a> Watch<'a> {
    fn new(store: &'a StoreArgs, args: &'a WatchArgs) -> Result<Self, Failure> {
        let listen = |kind: SignalKind| {
            signal(kind).map_err(|error| Failure::other(format!("signals cannot be received: {error}")))
        };
        let ending = |kind: SignalKind| -> Result<(u8, Signals), Failure> {
            let number = u8::try_from(kind.as_raw_value()).unwrap_or_default();
            Ok((SIGNAL_BASE + number, listen(kind)?))
        };
        Ok(Self {
            store,
            args,
            board: Board::default(),
            choices: Choices::default(),
            client: None,
            reached: "the store".to_owned(),
            answer: Answer(Some(Box::pin(look(store, args, None)))),
            asked_at: Instant::now(),
            trouble: None,
            page: 0,
            signals: [
                ending(SignalKind::terminate())?,
                ending(SignalKind::interrupt())?,
                ending(SignalKind::hangup())?,
            ],
            continued: listen(SignalKind::from_raw(Signal::CONT.as_raw()))?,
        })
    }

    /// Draws, and waits for a key, an answer, a signal or the next look, until one of them ends it.
    async fn run(&mut self, screen: &mut Screen) -> Result<u8, Failure> {
        let mut keys = keys();
        loop {
            self.draw(screen).map_err(|error| broken_terminal(&error))?;
            let [term, int, hup] = &mut self.signals;
            let next_look = tokio::time::Instant::from_std(self.asked_at + self.args.interval);
            tokio::select! {
                event = keys.recv() => match event {
                    None => return Ok(0),
                    Some(Err(error)) => return Err(broken_terminal(&error)),
                    Some(Ok(event)) => match self.press(&event) {
                        Wish::GoOn => {}
                        Wish::Quit => return Ok(0),
                        // Ctrl-Z: the shell has the terminal until it continues this process.
                        Wish::Stop => screen
                            .lend(|| kill_current_process_group(Signal::TSTP).map_err(io::Error::from))
                            .map_err(|error| broken_terminal(&error))?,
                    },
                },
                answer = self.answer.wait() => self.take(answer)?,
                () = tokio::time::sleep_until(next_look), if self.answer.0.is_none() => self.ask(),
                () = tokio::time::sleep(REDRAW) => {}
                _ = self.continued.recv() => screen.enter().map_err(|error| broken_terminal(&error))?,
                _ = term.1.recv() => return Ok(term.0),
                _ = int.1.recv() => return Ok(int.0),
                _ = hup.1.recv() => return Ok(hup.0),
            }
        }
    }

    fn press(&mut self, event: &Event) -> Wish {
        // Anything else, for instance a new size, only needs another drawing.
        let Event::Key(key) = event else { return Wish::GoOn };
        self.choices.press(*key, self.page)
    }

    fn ask(&mut self) {
        self.asked_at = Instant::now();
        self.answer = Answer(Some(Box::pin(look(self.store, self.args, self.client.clone()))));
    }

    fn take(&mut self, look: Look) -> Result<(), Failure> {
        self.answer = Answer(None);
        self.client = look.client;
        if let Some(client) = &self.client {
            self.reached = client.store();
        }
        match look.listing {
            Ok(listing) => {
                self.board.update(listing, Instant::now());
                self.trouble = None;
            }
            // Nothing will get better by itself, and there is nothing to show.
            Err(failure) if failure.code != UNAVAILABLE && self.board.read_at().is_none() => {
                return Err(failure);
            }
            Err(failure) => {
                let since = self.trouble.as_ref().map_or(self.asked_at, |(since, _)| *since);
                self.trouble = Some((since, failure.message));
            }
        }
        Ok(())
    }

    fn draw(&mut self, screen: &mut Screen) -> io::Result<()> {
        let now = Instant::now();
        self.choices.clamp(&self.board, self.page);
        let slow = self.answer.0.is_some() && now.duration_since(self.asked_at) > PATIENCE;
        let trouble = match &self.trouble {
            None if slow => Some((self.asked_at, "still trying".to_owned())),
            trouble => trouble.clone(),
        };
        let view = View {
            board: &self.board,
            choices: &self.choices,
            store: &self.reached,
            interval: self.args.interval,
            trouble,
            now,
            colours: colours(),
        };
        let mut page = 0;
        screen.draw(|frame| page = view.draw(frame))?;
        self.page = page;
        Ok(())
    }
}

/// Looks at the store, over a new connection if there is none.
async fn look(store: &StoreArgs, args: &WatchArgs, client: Option<Client>) -> Look {
    let client = match client {
        Some(client) => client,
        None => match connect_to_look(store).await {
            Ok(client) => client,
            Err(failure) => return Look { client: None, listing: Err(failure) },
        },
    };
    let limit = usize::try_from(args.limit).unwrap_or(usize::MAX);
    let listing = client.list(&args.prefix, limit).await.map_err(Failure::from);
    // A connection that gave no answer may never give one again, whatever becomes of the server.
    let client = listing.is_ok().then_some(client);
    Look { client, listing }
}

/// Keys and changes of size, from a thread of their own: reading a terminal blocks.
fn keys() -> mpsc::UnboundedReceiver<io::Result<Event>> {
    let (send, receive) = mpsc::unbounded_channel();
    std::thread::spawn(move || {
        loop {
            let event = event::read();
            let failed = event.is_err();
            if send.send(event).is_err() || failed {
                return;
            }
        }
    });
    receive
}

fn broken_terminal(error: &io::Error) -> Failure {
    Failure::other(format!("the terminal does not work: {error}"))
}
