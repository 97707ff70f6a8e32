//! Acquiring: one attempt, or waiting with one budget until the name is granted. Whatever happens on the way
//! (a lost reply, a cancelled future, a panic) nothing is left behind.

use std::sync::Arc;
use std::time::Duration;

use tracing::Instrument;

use crate::cleanup::CleanUp;
use crate::clock::Moment;
use crate::engine::{Engine, Granted, LeaseCell};
use crate::error::{Error, ErrorKind};
use crate::fencing::FencingToken;
use crate::lease::{Machine, Terms};
use crate::mutation::{Rule, on};
use crate::name::Name;
use crate::nesting;
use crate::observe::{self, Acquired};
use crate::options::{COMMAND_TIMEOUT, CheckedOptions, Wait, rounded};
use crate::owner::OwnerToken;
use crate::queue::Turn;
use crate::store::{AcquireReply, AcquireRequest, Held, Holder, QueueRequest, Ticket};
use crate::waiter::{Mail, Mailbox, PushedGrant};

/// The first pause after an error of the store; later ones double it …
const FIRST_PAUSE: Duration = Duration::from_millis(25);
/// … up to this.
const MOST_PAUSE: Duration = Duration::from_secs(1);
/// The first waiter of a name asks again this often, in case a message was lost.
const FIRST_ASKS_AGAIN: Duration = Duration::from_secs(1);
/// Waiters behind it ask again within this range, in case messages or their queue entry were lost.
const BEHIND_ASKS_AGAIN: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(20));
/// Everybody before a waiter may have died together with the holder, with the machine of all of them: it asks
/// this long after the end of the lease, times the number of binary digits of its place. So those behind come
/// within seconds however many died, not all at once, and a long queue asks hardly more often than a short one.
const AFTER_DEATHS: Duration = Duration::from_millis(500);
/// A holder that is not Leasehold tells nobody when it releases: the first waiter polls, at first this often …
const FOREIGN_POLL_FIRST: Duration = Duration::from_millis(50);
/// … backing off to this.
const FOREIGN_POLL_MOST: Duration = Duration::from_millis(500);
/// The lease's time is known in whole milliseconds; asking earlier would be in vain.
const AFTER_EXPIRY: Duration = Duration::from_millis(1);

/// A queue entry does not end with a lease: stores forget a queue that nobody refreshed for this long.
const QUEUE_EXPIRY: Duration = Duration::from_secs(60);

/// What became of an acquisition.
pub(crate) enum Outcome {
    Acquired(Arc<LeaseCell>),
    Busy(Option<Held>),
}

/// Called when the acquisition begins to wait for another holder, and whenever that holder changes.
pub(crate) type OnWaiting = Arc<dyn Fn(&Held) + Send + Sync>;

/// Acquires a name.
///
/// Cancel safety: dropping the future withdraws whatever it may have left in the store, in the background.
pub(crate) async fn acquire(
    engine: &Arc<Engine>,
    name: &Name,
    options: &CheckedOptions,
    on_waiting: Option<&OnWaiting>,
) -> Result<Outcome, Error> {
    let mut measured = Measured { engine, started: engine.now(), outcome: Acquired::Cancelled };
    let span = tracing::debug_span!("leasehold.acquire", %name);
    let outcome = attempt(engine, name, options, on_waiting, measured.started).instrument(span).await;
    measured.outcome = match &outcome {
        Ok(Outcome::Acquired(_)) => Acquired::Granted,
        Ok(Outcome::Busy(_)) => Acquired::Busy,
        Err(_) => Acquired::Failed,
    };
    outcome
}

/// Reports an acquisition when it ends, also by being dropped.
struct Measured<'a> {
    engine: &'a Engine,
    started: Moment,
    outcome: Acquired,
}

impl Drop for Measured<'_> {
    fn drop(&mut self) {
        observe::acquisition(self.outcome, self.engine.now().since(self.started));
    }
}

async fn attempt(
    engine: &Arc<Engine>,
    name: &Name,
    options: &CheckedOptions,
    on_waiting: Option<&OnWaiting>,
    started: Moment,
) -> Result<Outcome, Error> {
    engine.check_usable()?;
    let give_up_at = match options.wait {
        Wait::No => started,
        Wait::For(wait) => started.after(wait),
        Wait::Forever => Moment::NEVER,
    };
    let waits = give_up_at > started;
    if waits && on(Rule::RefuseNested) && nesting::is_inside(engine, name) {
        return Err(Error::config(format!(
            "{name}: the section that holds this name waits here for itself: use the lease that the section was \
             given, or do not wait"
        )));
    }
    let turn = (waits && on(Rule::LocalQueue)).then(|| engine.local_queue.enter(name));
    if let Some(turn) = &turn
        && engine.timers.before(give_up_at, turn).await.is_none()
    {
        return Ok(Outcome::Busy(None));
    }
    let mut acquisition = Acquisition::new(engine, name, options, waits, give_up_at, turn)?;
    acquisition.run(on_waiting).await
}

/// One acquisition under way. Dropping it cleans up.
struct Acquisition<'a> {
    engine: &'a Arc<Engine>,
    name: &'a Name,
    options: &'a CheckedOptions,
    owner: OwnerToken,
    started: Moment,
    give_up_at: Moment,
    mailbox: Option<Arc<Mailbox>>,
    ticket: Option<Ticket>,
    /// A reply said that something of ours is in the store: a queue entry, or a lease that came too late.
    in_store: bool,
    /// A request is under way and is refused by the store after this moment.
    under_way: Option<Moment>,
    /// An earlier request was not answered and may still arrive until this moment.
    unanswered_until: Option<Moment>,
    /// Set while the store gives no usable answer.
    trouble: Option<Trouble>,
    pause: Duration,
    poll_pause: Duration,
    last_held: Option<Held>,
    warned: bool,
    /// Kept until the end: the next local waiter's turn comes when this one leaves.
    _turn: Option<Turn>,
}

/// A store that gives no usable answer: since when, and what it said last.
struct Trouble {
    since: Moment,
    error: Error,
}

impl<'a> Acquisition<'a> {
    fn new(
        engine: &'a Arc<Engine>,
        name: &'a Name,
        options: &'a CheckedOptions,
        waits: bool,
        give_up_at: Moment,
        turn: Option<Turn>,
    ) -> Result<Self, Error> {
        let owner = match &options.owner {
            // The guard it has would go on believing that it alone holds the lease.
            Some(owner) if on(Rule::ResumeElsewhere) && engine.holds(name, owner) => {
                return Err(Error::config(format!(
                    "{name}: this client holds the lease of that owner token already: use its guard, or release \
                     it before resuming"
                )));
            }
            Some(owner) => owner.clone(),
            None => OwnerToken::generate(&*engine.entropy, &engine.label)?,
        };
        let mailbox = if waits {
            Some(engine.waiters.open(&owner).ok_or_else(|| {
                Error::config(format!(
                    "{name}: this owner token is already waiting in this process: wait once"
                ))
            })?)
        } else {
            None
        };
        Ok(Self {
            engine,
            name,
            options,
            owner,
            started: engine.now(),
            give_up_at,
            mailbox,
            ticket: None,
            in_store: false,
            under_way: None,
            unanswered_until: None,
            trouble: None,
            pause: FIRST_PAUSE,
            poll_pause: Duration::ZERO,
            last_held: None,
            warned: false,
            _turn: turn,
        })
    }

    async fn run(&mut self, on_waiting: Option<&OnWaiting>) -> Result<Outcome, Error> {
        loop {
            let sent_at = self.engine.now();
            if let Some(error) = self.store_given_up(sent_at) {
                return Err(error);
            }
            let ask_again_at = match self.ask(sent_at).await {
                None => return Ok(Outcome::Busy(self.last_held.take())),
                Some(Ok(AcquireReply::Granted { fencing_token })) => {
                    let counts_from = if on(Rule::CountFromSend) { sent_at } else { self.engine.now() };
                    if let Some(cell) = self.granted(counts_from, self.options.ttl, fencing_token) {
                        return Ok(Outcome::Acquired(cell));
                    }
                    self.in_store = true;
                    let slow = "the store answers so slowly that the lease was over";
                    self.in_trouble(sent_at, Error::new(ErrorKind::Unavailable, slow))
                }
                Some(Ok(AcquireReply::Held(held))) => {
                    self.trouble = None;
                    self.pause = FIRST_PAUSE;
                    self.in_store = held.place.is_some();
                    if self.mailbox.is_none() {
                        return Ok(Outcome::Busy(Some(held)));
                    }
                    self.ticket = held.place.map(|place| place.ticket).or(self.ticket);
                    let pause = self.poll_pause(&held);
                    self.note_held(held, on_waiting);
                    self.engine.now().after(pause)
                }
                Some(Err(error)) if error.kind() == ErrorKind::NotReplicated => {
                    // It is given back, but perhaps not yet.
                    self.in_store = true;
                    return Err(error.context(self.name));
                }
                Some(Err(error)) if !error.is_retryable() => return Err(error.context(self.name)),
                Some(Err(error)) => self.in_trouble(sent_at, error),
            };
            if let Some(outcome) = self.wait_until(ask_again_at).await {
                return Ok(outcome);
            }
        }
    }

    /// Sends one acquire. `None` if the time to wait is over before the reply.
    async fn ask(&mut self, sent_at: Moment) -> Option<Result<AcquireReply, Error>> {
        if !on(Rule::SameOwnerOnRetry) && self.unanswered_until.is_some() {
            let owner = OwnerToken::generate(&*self.engine.entropy, &self.engine.label);
            self.owner = owner.unwrap_or_else(|_| self.owner.clone());
        }
        let polling = self.engine.store.capabilities().polling;
        let not_after = sent_at.after(COMMAND_TIMEOUT);
        let request = AcquireRequest {
            name: self.name,
            owner: &self.owner,
            ttl: self.options.ttl,
            queue: self.mailbox.as_ref().map(|_| QueueRequest {
                ticket: self.ticket,
                poll_interval: polling.most.max(polling.behind),
            }),
            not_after,
        };
        self.under_way = Some(not_after);
        if let Some(mailbox) = &self.mailbox {
            // A grant that is already here is older than the one this request asks for.
            mailbox.take();
        }
        // A caller whose time is over gets its answer at once if it is known who holds the name; otherwise it is
        // owed the truth about the store.
        let patience = match self.gives_store_up_at(sent_at) {
            gives_up_at if on(Rule::StoreTimeout) => not_after.min(gives_up_at),
            _ => not_after,
        };
        let until = if self.last_held.is_some() { patience.min(self.give_up_at) } else { patience };
        let asked = match self.options.acks {
            0 => self.engine.store.acquire(request),
            acks => self.engine.store.acquire_acked(request, acks),
        };
        let reply = match self.engine.timers.before(until, asked).await {
            Some(reply) => reply,
            None if until < patience => return None,
            None => Err(Error::new(
                ErrorKind::Unknown,
                format!(
                    "{} gave no reply within {:?}",
                    self.engine.store.describe(),
                    rounded(patience.since(sent_at))
                ),
            )),
        };
        let answered = !matches!(&reply, Err(error) if error.kind() == ErrorKind::Unknown);
        if !answered {
            self.unanswered_until = self.under_way;
        }
        self.under_way = None;
        Some(reply)
    }

    /// Notes an answer without a verdict. When to ask again.
    fn in_trouble(&mut self, sent_at: Moment, error: Error) -> Moment {
        let ends = self.gives_store_up_at(sent_at);
        let since = self.trouble.as_ref().map_or(sent_at, |trouble| trouble.since);
        self.trouble = Some(Trouble { since, error });
        let pause = self.engine.jitter(self.pause / 2, self.pause);
        self.pause = (self.pause * 2).min(MOST_PAUSE);
        self.engine.now().after(pause).min(ends)
    }

    /// When the store's time is over, if it gives no usable answer to a request sent at `sent_at` either.
    fn gives_store_up_at(&self, sent_at: Moment) -> Moment {
        let since = self.trouble.as_ref().map_or(sent_at, |trouble| trouble.since);
        since.after(self.engine.store_timeout)
    }

    /// The store's last error if its time is over: there is none left to ask again.
    fn store_given_up(&mut self, now: Moment) -> Option<Error> {
        let timeout = self.engine.store_timeout;
        let trouble = self.trouble.take_if(|trouble| now >= trouble.since.after(timeout))?;
        let words = format_args!("{}: no usable answer from the store for {:?}", self.name, rounded(timeout))
            .to_string();
        if trouble.error.kind() == ErrorKind::Unavailable && self.unanswered_until.is_some() {
            // The last request was not executed; an earlier one may have been.
            let message = format!("{words}, and an earlier request got no reply: {}", trouble.error);
            return Some(Error::new(ErrorKind::Unknown, message).with_source(trouble.error));
        }
        Some(trouble.error.context(words))
    }

    /// Waits for mail or the time to ask again. `None` means: ask again.
    async fn wait_until(&mut self, ask_again_at: Moment) -> Option<Outcome> {
        let mut ask_again_at = ask_again_at;
        loop {
            let until = self.ends_waiting_by(ask_again_at);
            let mail = if let Some(mailbox) = &self.mailbox {
                self.engine.timers.before(until, mailbox.receive()).await
            } else {
                self.engine.timers.sleep_until(until).await;
                None
            };
            match mail {
                Some(Mail { grant: Some(grant), .. }) => return self.pushed(grant),
                Some(Mail { recheck: true, .. }) => {
                    observe::asked_again("reconnect");
                    return None;
                }
                Some(Mail { first: Some(ends), .. }) => {
                    let regular = self.engine.now().after(FIRST_ASKS_AGAIN);
                    // Never later than planned: the store's own time may end before.
                    ask_again_at = ask_again_at.min(ends.after(AFTER_EXPIRY)).min(regular);
                }
                Some(_) => {}
                None if until < ask_again_at => return Some(Outcome::Busy(self.last_held.take())),
                None => {
                    observe::asked_again(if self.trouble.is_some() { "trouble" } else { "poll" });
                    return None;
                }
            }
        }
    }

    /// When waiting ends: at the time to ask again, or when the caller's time is over and the store is not in
    /// trouble (then its own timeout decides).
    fn ends_waiting_by(&mut self, ask_again_at: Moment) -> Moment {
        if let (false, Wait::For(wait)) = (on(Rule::OneWaitBudget), self.options.wait) {
            self.give_up_at = self.engine.now().after(wait);
        }
        if self.last_held.is_none() || self.mailbox.is_none() {
            return ask_again_at;
        }
        ask_again_at.min(self.give_up_at)
    }

    /// A grant arrived by push: take it if it is certainly young enough, else ask the store once more.
    fn pushed(&mut self, grant: PushedGrant) -> Option<Outcome> {
        if self.options.acks > 0 && on(Rule::ConfirmForAcks) {
            // The replicas have to confirm it, and that is asked on a connection of its own.
            observe::asked_again("confirm");
            return None;
        }
        let now = self.engine.now();
        let bound = match grant.granted_after {
            Some(bound) if now.since(bound) <= grant.claim / 2 => bound,
            _ if on(Rule::ConfirmOldGrant) => {
                observe::asked_again("confirm");
                return None;
            }
            bound => bound.unwrap_or(now).max(now.before(grant.claim / 2)),
        };
        let cell = self.granted(bound, grant.claim, grant.fencing_token)?;
        observe::hand_over("received");
        Some(Outcome::Acquired(cell))
    }

    /// Puts the granted lease under the keeper's care; `None` if its time is already over.
    fn granted(
        &mut self,
        granted_after: Moment,
        period: Duration,
        fencing_token: FencingToken,
    ) -> Option<Arc<LeaseCell>> {
        let machine = Machine::granted(Terms {
            granted_after,
            period,
            ttl: self.options.ttl,
            renewed: !self.options.fixed_lease,
            max_hold: self.options.max_hold,
        });
        if self.engine.now() >= machine.lost_at() {
            return None;
        }
        let late_until = self.late_until();
        self.in_store = false;
        self.unanswered_until = None;
        let waited = self.mailbox.take().is_some();
        if waited && on(Rule::KnowHolders) {
            self.engine.waiters.holds(&self.owner);
        } else if waited {
            self.engine.waiters.close(&self.owner);
        }
        let (name, owner) = (self.name.clone(), self.owner.clone());
        let (ttl, fixed) = (self.options.ttl, self.options.fixed_lease);
        let lease =
            Granted { name, owner, fencing_token, late_until, begins: granted_after, ttl, fixed, waited };
        Some(self.engine.keep(lease, machine))
    }

    fn note_held(&mut self, held: Held, on_waiting: Option<&OnWaiting>) {
        let news = self.last_held.as_ref().is_none_or(|last| last.holder != held.holder);
        if let (true, Some(on_waiting)) = (news, on_waiting) {
            on_waiting(&held);
        }
        let polls = |held: &Held| held.place.is_some_and(|place| !place.pushed);
        if polls(&held) && !self.last_held.as_ref().is_some_and(polls) {
            observe::polling_fallback();
        }
        self.last_held = Some(held);
        self.warn_of_own_lease();
    }

    /// A task that keeps a guard by hand may wait for it: nobody can tell that from waiting for another task of
    /// this process, but after a while the log says how it looks.
    fn warn_of_own_lease(&mut self) {
        let waited = self.engine.now().since(self.started);
        if !self.warned && waited > self.options.ttl && self.engine.holds_name(self.name) {
            self.warned = true;
            observe::waits_for_own_lease(self.name, waited);
        }
    }

    /// How long until this waiter asks again by itself.
    fn poll_pause(&mut self, held: &Held) -> Duration {
        let polling = self.engine.store.capabilities().polling;
        let place = held.place;
        let first = place.is_none_or(|place| place.first);
        let foreign = held.holder == Holder::Foreign;
        let pause = match place {
            Some(place) if place.pushed && !first => {
                self.engine.jitter(BEHIND_ASKS_AGAIN.0, BEHIND_ASKS_AGAIN.1)
            }
            Some(place) if place.pushed && !foreign => FIRST_ASKS_AGAIN,
            Some(place) if place.pushed => self.back_off(FOREIGN_POLL_FIRST, FOREIGN_POLL_MOST),
            _ if first => self.back_off(polling.first, polling.most),
            _ => self.back_off(polling.first.max(polling.behind / 4), polling.behind),
        };
        match held.remaining {
            // The store could not finish serving the queue in one step.
            Some(Duration::ZERO) => AFTER_EXPIRY,
            Some(remaining) if on(Rule::PollAtExpiry) => {
                let digits = u32::BITS - place.map_or(0, |place| place.ahead).leading_zeros();
                let most = AFTER_DEATHS * digits;
                let after = if first { AFTER_EXPIRY } else { self.engine.jitter(most * 3 / 4, most) };
                pause.min(remaining.saturating_add(after))
            }
            _ => pause,
        }
    }

    fn back_off(&mut self, first: Duration, most: Duration) -> Duration {
        self.poll_pause = (self.poll_pause * 3 / 2).clamp(first, most);
        self.engine.jitter(self.poll_pause * 3 / 4, self.poll_pause)
    }

    /// Until when a request of ours may still arrive at the store.
    fn late_until(&self) -> Option<Moment> {
        let now = self.engine.now();
        self.under_way.max(self.unanswered_until).filter(|until| now <= *until)
    }
}

impl Drop for Acquisition<'_> {
    fn drop(&mut self) {
        let mut lasts = self.options.ttl;
        if self.mailbox.is_some() {
            self.engine.waiters.close(&self.owner);
            lasts = lasts.max(QUEUE_EXPIRY);
        }
        let unanswered = self.under_way.is_some() || self.unanswered_until.is_some();
        if !self.in_store && !unanswered {
            return;
        }
        if !on(if self.in_store { Rule::Withdraw } else { Rule::CleanUpAbandoned }) {
            return;
        }
        let now = self.engine.now();
        tracing::debug!(name = %self.name, waited = ?now.since(self.started), "acquisition abandoned");
        let late_until = self.late_until();
        self.engine.clean_up(CleanUp {
            name: self.name.clone(),
            owner: self.owner.clone(),
            keep_until: None,
            late_until,
            gone_at: late_until.unwrap_or(now).after(lasts),
            settlement: None,
        });
    }
}
