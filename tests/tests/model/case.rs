//! One case: carries out the steps on a store, tells the model what was seen, and looks at what is left at the end.

use std::time::Duration;

use leasehold::core::store::{BreakMode, BreakReply, Holder};
use leasehold::core::{Attempt, Client, Error, ErrorKind, Guard, LeaseState, Load, Lock, Name, Released};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::SLACK;
use crate::model::{At, Model, Seen, Span};
use crate::places::Place;
use crate::steps::{CLIENTS, Fault, Kind, Loss, Step};

/// How long a fixed lease lasts.
pub(crate) const FIXED: Duration = Duration::from_millis(150);
const FIXED_EXTENDED: Duration = Duration::from_millis(300);
/// Longer than any case, busy machines included: such a lease ends only when somebody ends it.
const RENEWED: Duration = Duration::from_secs(60);
const BRIEFLY: Duration = Duration::from_millis(20);
const LOOK: Duration = Duration::from_millis(2);
const NAME: &str = "job";

type Outcome = Result<(), String>;

struct Case {
    place: Place,
    clients: Vec<Client>,
    observer: Client,
    model: Model,
    guards: Vec<Option<Held>>,
    waiters: Vec<Waiter>,
    waiters_so_far: usize,
    began: Instant,
}

/// A guard, by the number of its lease.
struct Held {
    guard: Guard,
    /// How long its lease lasts, if it ends by itself.
    fixed: Option<Duration>,
}

struct Waiter {
    client: usize,
    number: usize,
    kind: Kind,
    asked: At,
    task: JoinHandle<Result<Attempt, Error>>,
}

/// Runs the steps; what the model does not allow is an error.
pub(crate) async fn run(place: Place, steps: Vec<Step>) -> Outcome {
    let mut clients = Vec::new();
    for number in 0..CLIENTS {
        clients.push(place.connect(&label(number)).await);
    }
    let observer = place.connect("observer").await;
    let mut case = Case {
        place,
        clients,
        observer,
        model: Model::new(),
        guards: Vec::new(),
        waiters: Vec::new(),
        waiters_so_far: 0,
        began: Instant::now(),
    };
    for (number, step) in steps.into_iter().enumerate() {
        case.step(step).await.map_err(|error| format!("step {number}, {step:?}: {error}"))?;
        case.settle().await.map_err(|error| format!("after step {number}, {step:?}: {error}"))?;
    }
    case.end().await
}

fn label(client: usize) -> String {
    format!("client-{client}")
}

fn client_of(label: &str) -> Option<usize> {
    label.strip_prefix("client-")?.parse().ok()
}

fn lasts(kind: Kind) -> Option<Duration> {
    (kind == Kind::Fixed).then_some(FIXED)
}

impl Case {
    fn now(&self) -> At {
        self.began.elapsed()
    }

    fn lock(&self, client: usize, kind: Kind) -> Lock {
        let lock = self.clients[client].lock(NAME).unwrap();
        match kind {
            Kind::Renewed => lock.ttl(RENEWED),
            Kind::Fixed => lock.ttl(FIXED).fixed_lease(),
        }
    }

    async fn step(&mut self, step: Step) -> Outcome {
        match step {
            Step::Try { client, kind } => self.attempt(client, kind, Duration::ZERO).await,
            Step::WaitBriefly { client } => self.attempt(client, Kind::Renewed, BRIEFLY).await,
            Step::Wait { client, kind } => {
                self.wait(client, kind);
                Ok(())
            }
            Step::GiveUp { waiter } => self.give_up(waiter).await,
            Step::Renew { lease } => self.renew(lease, false).await,
            Step::Extend { lease } => self.renew(lease, true).await,
            Step::Release { lease } => self.release(lease).await,
            Step::Drop { lease } => self.drop_guard(lease).await,
            Step::Break { client } => self.break_lease(client).await,
            Step::Inspect { client } => self.inspect(client).await,
            Step::List { client } => self.list(client).await,
            Step::SetClock { ahead } => {
                self.place.step_clock(ahead, self.now());
                Ok(())
            }
            Step::PauseBriefly => self.pause(FIXED / 5).await,
            Step::Pause => self.pause(FIXED * 5 / 4).await,
            Step::Lose(loss) => self.lose(loss),
            Step::Fault(fault) => self.fault(fault).await,
        }
    }

    async fn pause(&mut self, time: Duration) -> Outcome {
        tokio::time::sleep(time).await;
        Ok(())
    }

    async fn attempt(&mut self, client: usize, kind: Kind, wait: Duration) -> Outcome {
        let from = self.now();
        let attempt = self.lock(client, kind).wait(wait).acquire().await;
        let span = Span { from, to: self.now() };
        match attempt {
            Ok(Attempt::Acquired(guard)) => {
                // Whoever was served meanwhile was served before.
                self.collect().await?;
                let fixed = lasts(kind);
                self.model.see(span, &Seen::Acquired { client, lease: self.guards.len(), fixed })?;
                self.keep(guard, fixed)
            }
            Ok(Attempt::Busy(busy)) => {
                let holder = busy.holder.as_deref().and_then(client_of);
                self.model.see(span, &Seen::Busy { holder })
            }
            Err(error) => Err(format!("an acquisition failed: {error}")),
        }
    }

    fn keep(&mut self, guard: Guard, fixed: Option<Duration>) -> Outcome {
        self.model.token(guard.fencing_token().get())?;
        self.guards.push(Some(Held { guard, fixed }));
        Ok(())
    }

    fn wait(&mut self, client: usize, kind: Kind) {
        let lock = self.lock(client, kind).wait_forever();
        let number = self.waiters_so_far;
        self.waiters_so_far += 1;
        self.model.waits(client, number);
        let asked = self.now();
        let task = tokio::spawn(async move { lock.acquire().await });
        self.waiters.push(Waiter { client, number, kind, asked, task });
    }

    async fn give_up(&mut self, index: usize) -> Outcome {
        if self.waiters.is_empty() {
            return Ok(());
        }
        let waiter = self.waiters.remove(index % self.waiters.len());
        waiter.task.abort();
        match waiter.task.await {
            Ok(attempt) => self.granted((waiter.client, waiter.number, waiter.kind), waiter.asked, attempt),
            Err(_cancelled) => {
                self.model.gave_up(waiter.client, waiter.number);
                Ok(())
            }
        }
    }

    fn granted(
        &mut self,
        (client, waiter, kind): (usize, usize, Kind),
        asked: At,
        attempt: Result<Attempt, Error>,
    ) -> Outcome {
        let guard = match attempt {
            Ok(Attempt::Acquired(guard)) => guard,
            other => return Err(format!("a wait without end ended with {other:?}")),
        };
        // The answer to its first request may have been long on the way, and its lease counts from that request.
        let span = Span { from: asked, to: self.now() };
        let (lease, fixed) = (self.guards.len(), lasts(kind));
        self.model.see(span, &Seen::Granted { client, waiter, lease, fixed })?;
        self.keep(guard, fixed)
    }

    /// The numbers of the leases whose guards are here.
    fn kept(&self) -> Vec<usize> {
        (0..self.guards.len()).filter(|lease| self.guards[*lease].is_some()).collect()
    }

    fn pick(&self, index: usize) -> Option<usize> {
        let kept = self.kept();
        (!kept.is_empty()).then(|| kept[index % kept.len()])
    }

    async fn renew(&mut self, index: usize, extend: bool) -> Outcome {
        let Some(lease) = self.pick(index) else { return Ok(()) };
        let from = self.now();
        let Some(held) = &mut self.guards[lease] else { return Ok(()) };
        let longer = if held.fixed.is_some() { FIXED_EXTENDED } else { RENEWED * 2 };
        let renewed = if extend { held.guard.extend(longer).await } else { held.guard.renew().await };
        if extend && held.fixed.is_some() && renewed.is_ok() {
            held.fixed = Some(longer);
        }
        let fixed = held.fixed;
        let span = Span { from, to: self.now() };
        match renewed {
            Ok(()) => self.model.see(span, &Seen::Renewed { lease, fixed }),
            Err(error) if matches!(error.kind(), ErrorKind::Lost(_)) => {
                self.model.see(span, &Seen::NotRenewed { lease })
            }
            // It waits for a quarter of the lease at most, which is short.
            Err(error) if error.kind() == ErrorKind::Unknown => {
                self.model.see(span, &Seen::RenewedSomehow { lease, fixed })
            }
            Err(error) => Err(format!("a renewal failed: {error}")),
        }
    }

    async fn release(&mut self, index: usize) -> Outcome {
        let Some(lease) = self.pick(index) else { return Ok(()) };
        let Some(held) = self.guards[lease].take() else { return Ok(()) };
        let from = self.now();
        let released = held.guard.release().await;
        let span = Span { from, to: self.now() };
        let seen = match released {
            Ok(Released::Freed) => Seen::Freed { lease },
            Ok(Released::AlreadyLost) => Seen::AlreadyLost { lease },
            Err(error) if error.kind() == ErrorKind::Unknown => Seen::ReleasedSomehow { lease },
            Err(error) => return Err(format!("a release failed: {error}")),
        };
        self.model.see(span, &seen)
    }

    async fn drop_guard(&mut self, index: usize) -> Outcome {
        let Some(lease) = self.pick(index) else { return Ok(()) };
        let from = self.now();
        drop(self.guards[lease].take());
        self.clean().await?;
        self.model.see(Span { from, to: self.now() }, &Seen::Dropped { lease })
    }

    /// Whether it is open who holds the name just now.
    fn is_changing(&self) -> bool {
        let waits = self.model.waiting_clients() > 0;
        self.model.states.iter().any(|state| waits && state.may_end())
    }

    async fn break_lease(&mut self, client: usize) -> Outcome {
        if self.is_changing() {
            return Ok(());
        }
        let from = self.now();
        let broken = self.clients[client].break_lease(NAME, BreakMode::Now).await;
        let span = Span { from, to: self.now() };
        let seen = match broken {
            Ok(BreakReply::Broken { holder: Holder::Lease { label }, .. }) => {
                Seen::Broken { holder: client_of(&label).ok_or("an unknown holder was broken")? }
            }
            Ok(BreakReply::Free) => Seen::NobodyToBreak,
            Err(error) if error.kind() == ErrorKind::Unknown => Seen::BrokenSomehow,
            other => return Err(format!("a break ended with {other:?}")),
        };
        self.model.see(span, &seen)
    }

    async fn inspect(&mut self, client: usize) -> Outcome {
        let from = self.now();
        let inspection = self.clients[client].inspect(NAME).await.map_err(|error| error.to_string())?;
        let span = Span { from, to: self.now() };
        let (holder, waiters) = inspection.map(|seen| (seen.holder, seen.waiters)).unwrap_or_default();
        let holder = match holder {
            None => None,
            Some(Holder::Lease { label }) => Some(client_of(&label).ok_or("an unknown holder")?),
            other => return Err(format!("held by {other:?}")),
        };
        let waiters = waiters.iter().filter_map(|label| client_of(label)).collect();
        self.model.see(span, &Seen::Inspected { holder, waiters })
    }

    async fn list(&mut self, client: usize) -> Outcome {
        let from = self.now();
        let listing = self.clients[client].list("", 10).await.map_err(|error| error.to_string())?;
        let span = Span { from, to: self.now() };
        let listed =
            listing.entries.iter().any(|entry| entry.name.as_str() == NAME && entry.holder.is_some());
        self.model.see(span, &Seen::Listed { listed })
    }

    fn lose(&mut self, loss: Loss) -> Outcome {
        if self.is_changing() {
            return Ok(());
        }
        let name = Name::new(NAME).map_err(|error| error.to_string())?;
        // Waiters behind the first come back to a lost queue only after many seconds.
        if loss == Loss::All && self.model.waiting_clients() <= 1 {
            self.place.lose_all(self.now());
            self.model.loses(true);
        } else {
            self.place.lose_lease(&name);
            self.model.loses(false);
        }
        Ok(())
    }

    async fn fault(&mut self, fault: Fault) -> Outcome {
        match fault {
            Fault::Reply(client) if self.place.lose_reply(client) => self.model.connections_broke(),
            Fault::Connections if self.place.break_connections() => {
                self.model.connections_broke();
                self.pause(FIXED / 2).await?;
            }
            _ => self.place.stall().await,
        }
        Ok(())
    }

    /// Takes note of every waiter that was served.
    async fn collect(&mut self) -> Outcome {
        let mut served = Vec::new();
        while let Some(index) = self.waiters.iter().position(|waiter| waiter.task.is_finished()) {
            let waiter = self.waiters.remove(index);
            let attempt = waiter.task.await.map_err(|error| format!("a waiter panicked: {error}"))?;
            let token = match &attempt {
                Ok(Attempt::Acquired(guard)) => guard.fencing_token().get(),
                _ => 0,
            };
            served.push((token, (waiter.client, waiter.number, waiter.kind), waiter.asked, attempt));
        }
        served.sort_by_key(|(token, ..)| *token);
        for (_, waiter, asked, attempt) in served {
            self.granted(waiter, asked, attempt)?;
        }
        Ok(())
    }

    /// Waits until everybody who has to be served is served, and clean-ups are done.
    async fn settle(&mut self) -> Outcome {
        self.clean().await?;
        let began = self.now();
        loop {
            self.collect().await?;
            self.look_at_guards()?;
            let now = self.now();
            if !self.model.must_serve(now) {
                break;
            }
            if now > began + SLACK {
                return Err(format!("nobody is served: {}", self.model));
            }
            tokio::time::sleep(LOOK).await;
        }
        self.wait_for_queue().await
    }

    /// What the guards say: at most one holds, besides those whose lease was taken away behind their back.
    fn look_at_guards(&mut self) -> Outcome {
        let from = self.now();
        let (mut held, mut lost) = (Vec::new(), Vec::new());
        for (lease, guard) in self.guards.iter().enumerate() {
            match guard.as_ref().map(|held| held.guard.state()) {
                Some(LeaseState::Held | LeaseState::Uncertain) => held.push(lease),
                Some(LeaseState::Lost(_)) => lost.push(lease),
                _ => {}
            }
        }
        self.model.see(Span { from, to: self.now() }, &Seen::Guards { held, lost })
    }

    /// Waits until the store knows those who wait, so that the next one comes after them.
    async fn wait_for_queue(&mut self) -> Outcome {
        let began = self.now();
        while !self.waiters.is_empty() && self.now() < began + SLACK / 10 {
            let seen = self.observer.inspect(NAME).await.map_err(|error| error.to_string())?;
            let count = seen.map_or(0, |seen| seen.waiters.len());
            if self.model.states.iter().any(|state| state.waiting() == count) {
                break;
            }
            tokio::time::sleep(LOOK).await;
            self.collect().await?;
        }
        Ok(())
    }

    async fn clean(&self) -> Outcome {
        let began = self.now();
        while self.clients.iter().any(|client| client.load().cleanups > 0) {
            if self.now() > began + SLACK {
                return Err("a clean-up does not end".to_owned());
            }
            tokio::time::sleep(LOOK).await;
        }
        Ok(())
    }

    /// Everybody leaves; nothing may be left of them.
    async fn end(mut self) -> Outcome {
        for waiter in std::mem::take(&mut self.waiters) {
            waiter.task.abort();
            drop(waiter.task.await);
        }
        self.guards.clear();
        self.clean().await?;
        for (number, client) in self.clients.iter().enumerate() {
            if client.load() != Load::default() {
                return Err(format!("left in client {number}: {:?}", client.load()));
            }
        }
        match self.observer.inspect(NAME).await {
            Ok(None) => Ok(()),
            left => Err(format!("left in the store: {left:?}")),
        }
    }
}
