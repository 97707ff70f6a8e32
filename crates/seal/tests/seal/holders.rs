//! Two holders of one lock who overlap, each on a connection of its own, stepped one statement at a time in any
//! order. A step that has to wait for the other's transaction is left waiting, and collected when that is over.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::databases::{Refused, Session, World, stamp};

/// How a holder guards its read and its write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// Seal, read, write, in one transaction.
    Sealed,
    /// Seal and read in one transaction; seal again and write in another, for work that takes long in between.
    SealedTwice,
    /// Read; write if no newer token has written. The negative control.
    CheckedOnWrite,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Begin,
    Seal,
    Read,
    Write,
    WriteChecked,
    Commit,
}

impl Way {
    pub(crate) fn steps(self) -> &'static [Step] {
        use Step::{Begin, Commit, Read, Seal, Write, WriteChecked};
        match self {
            Self::Sealed => &[Begin, Seal, Read, Write, Commit],
            Self::SealedTwice => &[Begin, Seal, Read, Commit, Begin, Seal, Write, Commit],
            Self::CheckedOnWrite => &[Read, WriteChecked],
        }
    }
}

enum Order {
    Step { step: Step, counter: u32, fence: u64, value: i64 },
    Rollback,
}

#[derive(Debug)]
enum Told {
    Done,
    Value(i64),
    Written(bool),
    Refused(Refused),
}

/// A thread with a session.
pub(crate) struct Hand {
    orders: Option<Sender<Order>>,
    told: Receiver<Told>,
    thread: Option<JoinHandle<()>>,
}

impl Hand {
    pub(crate) fn new(world: &World) -> Self {
        let mut session = world.session();
        let (orders, taken) = channel::<Order>();
        let (tell, told) = channel();
        let thread = std::thread::spawn(move || {
            for order in taken {
                if tell.send(obey(session.as_mut(), &order)).is_err() {
                    return;
                }
            }
        });
        Self { orders: Some(orders), told, thread: Some(thread) }
    }

    fn order(&self, order: Order) {
        self.orders.as_ref().unwrap().send(order).unwrap();
    }

    fn wait(&self) -> Told {
        self.told.recv_timeout(Duration::from_secs(30)).expect("the step ends")
    }
}

impl Drop for Hand {
    fn drop(&mut self) {
        drop(self.orders.take());
        // Its panic is reported where it happened, and its sender is gone.
        let _ = self.thread.take().unwrap().join();
    }
}

fn obey(session: &mut dyn Session, order: &Order) -> Told {
    let Order::Step { step, counter, fence, value } = *order else {
        session.rollback();
        return Told::Done;
    };
    match step {
        Step::Begin => session.begin(),
        Step::Seal => {
            if let Err(refused) = session.seal(&stamp(&format!("counter:{counter}"), fence)) {
                return Told::Refused(refused);
            }
        }
        Step::Read => return Told::Value(session.read(counter)),
        Step::Write => session.write(counter, value),
        Step::WriteChecked => {
            return Told::Written(session.write_checked(counter, value, fence.cast_signed()));
        }
        Step::Commit => session.commit(),
    }
    Told::Done
}

/// What one holder is doing under its present token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
struct Work {
    fence: u64,
    next: usize,
    read: i64,
    wrote: bool,
    /// Its seal waits for the other's transaction.
    waits: bool,
    /// In a transaction that has sealed.
    sealed: bool,
    in_transaction: bool,
}

/// Two holders and a counter, in which each adds 1 under every token it gets.
pub(crate) struct Pair<'a> {
    hands: &'a [Hand; 2],
    way: Way,
    counter: u32,
    work: [Option<Work>; 2],
    /// Writes that were accepted.
    pub(crate) accepted: i64,
    /// Holders that were told that they are stale.
    pub(crate) refused: u32,
    /// Seals that had to wait.
    pub(crate) waited: u32,
    pub(crate) history: Vec<String>,
}

impl<'a> Pair<'a> {
    pub(crate) fn new(hands: &'a [Hand; 2], way: Way, counter: u32) -> Self {
        let history = Vec::new();
        Self { hands, way, counter, work: [None; 2], accepted: 0, refused: 0, waited: 0, history }
    }

    pub(crate) fn is_idle(&self, who: usize) -> bool {
        self.work[who].is_none()
    }

    /// Whether this holder can do a step now.
    pub(crate) fn can_step(&self, who: usize) -> bool {
        self.work[who].is_some_and(|work| !work.waits)
    }

    /// The holder gets the lock, with this token.
    pub(crate) fn acquire(&mut self, who: usize, fence: u64) {
        self.history.push(format!("{fence}: acquires"));
        self.work[who] = Some(Work {
            fence,
            next: 0,
            read: 0,
            wrote: false,
            waits: false,
            sealed: false,
            in_transaction: false,
        });
    }

    /// The holder does its next step.
    pub(crate) fn step(&mut self, who: usize) {
        let work = self.work[who].unwrap();
        let step = self.way.steps()[work.next];
        let order = Order::Step { step, counter: self.counter, fence: work.fence, value: work.read + 1 };
        self.hands[who].order(order);
        let in_the_way = self.work[1 - who].is_some_and(|other| other.sealed);
        if step == Step::Seal && in_the_way {
            self.history.push(format!("{}: Seal, has to wait", work.fence));
            self.work[who].as_mut().unwrap().waits = true;
            self.waited += 1;
            return;
        }
        self.collect(who);
    }

    /// Takes the outcome of the step that was ordered.
    fn collect(&mut self, who: usize) {
        let told = self.hands[who].wait();
        let work = self.work[who].as_mut().unwrap();
        let step = self.way.steps()[work.next];
        self.history.push(format!("{}: {step:?} {told:?}", work.fence));
        work.waits = false;
        work.next += 1;
        match (step, told) {
            (Step::Begin, Told::Done) => work.in_transaction = true,
            (Step::Seal, Told::Done) => work.sealed = true,
            (Step::Read, Told::Value(value)) => work.read = value,
            (Step::Write, Told::Done) => work.wrote = true,
            (Step::Commit, Told::Done) => {
                work.in_transaction = false;
                self.accepted += i64::from(std::mem::take(&mut work.wrote));
                self.unseal(who);
            }
            (Step::WriteChecked, Told::Written(accepted)) => {
                self.accepted += i64::from(accepted);
                self.refused += u32::from(!accepted);
            }
            (Step::Seal, Told::Refused(refused)) if refused.is_fenced() => {
                self.refused += 1;
                self.give_up(who);
                return;
            }
            (step, told) => panic!("{step:?} was told {told:?} after {:#?}", self.history),
        }
        if self.work[who].is_some_and(|work| work.next == self.way.steps().len()) {
            self.work[who] = None;
        }
    }

    /// Rolls back what is open and forgets it, as a holder does that is refused or crashes.
    pub(crate) fn give_up(&mut self, who: usize) {
        let work = self.work[who].unwrap();
        self.history.push(format!("{}: gives up", work.fence));
        if work.in_transaction {
            self.hands[who].order(Order::Rollback);
            self.hands[who].wait();
        }
        self.unseal(who);
        self.work[who] = None;
    }

    /// The transaction of this holder is over: the other one's seal need not wait any more.
    fn unseal(&mut self, who: usize) {
        if let Some(work) = &mut self.work[who] {
            work.sealed = false;
        }
        if self.work[1 - who].is_some_and(|other| other.waits) {
            self.collect(1 - who);
        }
    }

    /// Does all steps that are left, one holder after the other.
    pub(crate) fn finish(&mut self) {
        while let Some(who) = (0..2).find(|who| self.can_step(*who)) {
            self.step(who);
        }
    }
}
