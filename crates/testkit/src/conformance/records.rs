//! Records of operations: written under the lease of their name, compared before they are changed, kept for their
//! time.

use std::time::Duration;

use leasehold_core::store::{Inspection, ReleaseReply, SwapReply, SwapRequest, Then};
use leasehold_core::{ErrorKind, MAX_RESULT_BYTES, Name, OwnerToken};

use super::actors::{LONG, Process, SHORT, name, needs_queue, owner, within};
use super::{Checked, Fixture, Skipped};

/// How long records are kept that must not end during a test.
const RETAIN: Duration = Duration::from_secs(3_600);
const GIVE_BACK: Then = Then::Release { keep_for: None };
const SWAPPED: SwapReply = SwapReply::Swapped { handed_over: false };

/// Skips a behaviour of records where there are none.
fn needs_records(process: &Process) -> Result<(), Skipped> {
    process.store.capabilities().records.then_some(()).ok_or(Skipped("records"))
}

async fn read(process: &Process, name: &Name) -> Option<Vec<u8>> {
    process.store.read_record(name).await.unwrap_or_else(|error| panic!("the record of {name}: {error}"))
}

/// What a swap does.
struct Swap<'a> {
    name: &'a Name,
    owner: &'a OwnerToken,
    expected: Option<&'a [u8]>,
    retain: Duration,
    then: Then,
}

impl<'a> Swap<'a> {
    fn first(name: &'a Name, owner: &'a OwnerToken) -> Self {
        Self { name, owner, expected: None, retain: RETAIN, then: Then::Hold }
    }

    fn after(self, expected: &'a [u8]) -> Self {
        Self { expected: Some(expected), ..self }
    }

    fn then(self, then: Then) -> Self {
        Self { then, ..self }
    }

    async fn to(&self, process: &Process, record: &[u8]) -> SwapReply {
        let reply = process.store.swap_record(self.request(record)).await;
        reply.unwrap_or_else(|error| panic!("swap of {}: {error}", self.name))
    }

    fn request<'b>(&'b self, record: &'b [u8]) -> SwapRequest<'b> {
        let Self { name, owner, expected, retain, then } = *self;
        SwapRequest { name, owner, expected, record, retain, then }
    }
}

/// A store that keeps no records says so, and changes nothing.
pub async fn a_store_without_records_says_so<F: Fixture>(fixture: &F) -> Checked {
    let (process, job, me) = (Process::start(fixture).await, name("job"), owner("me"));
    process.take(&job, &me, LONG).await;
    let (read, swap) = (process.store.read_record(&job).await, Swap::first(&job, &me).then(GIVE_BACK));
    let swapped = process.store.swap_record(swap.request(b"record")).await;
    if needs_records(&process).is_ok() {
        assert_eq!((read.ok(), swapped.ok()), (Some(None), Some(SWAPPED)));
        return Ok(());
    }
    for error in [read.err(), swapped.err()] {
        assert_eq!(error.map(|error| error.kind()), Some(ErrorKind::Config));
    }
    assert_eq!(process.holder_label(&job).await.as_deref(), Some("me"));
    Ok(())
}

/// Trap 56: only the holder of the name writes its record.
pub async fn a_record_is_written_by_the_holder_only<F: Fixture>(fixture: &F) -> Checked {
    let (process, job) = (Process::start(fixture).await, name("job"));
    needs_records(&process)?;
    let (me, other) = (owner("me"), owner("me"));
    for then in [Then::Hold, GIVE_BACK] {
        let reply = Swap::first(&job, &me).then(then).to(&process, b"free").await;
        assert_eq!(reply, SwapReply::NotHeld { current: None });
    }
    process.take(&job, &me, LONG).await;
    for then in [Then::Hold, GIVE_BACK] {
        let reply = Swap::first(&job, &other).then(then).to(&process, b"theirs").await;
        assert_eq!(reply, SwapReply::NotHeld { current: None });
    }
    assert_eq!(Swap::first(&job, &me).to(&process, b"mine").await, SWAPPED);
    let reply = Swap::first(&job, &other).after(b"mine").to(&process, b"theirs").await;
    assert_eq!(reply, SwapReply::NotHeld { current: Some(b"mine".to_vec()) });
    assert_eq!(read(&process, &job).await.as_deref(), Some(&b"mine"[..]));
    assert_eq!(process.release(&job, &me).await, ReleaseReply::Freed { handed_over: false });
    Ok(())
}

/// F150: a claim that has ended writes nothing any more.
pub async fn a_record_is_not_written_after_the_lease<F: Fixture>(fixture: &F) -> Checked {
    let (process, job, me) = (Process::start(fixture).await, name("job"), owner("me"));
    needs_records(&process)?;
    process.take(&job, &me, SHORT).await;
    assert_eq!(Swap::first(&job, &me).to(&process, b"started").await, SWAPPED);
    within(fixture, SHORT, "the lease ends", async || process.inspect(&job).await.is_none().then_some(()))
        .await;
    for then in [Then::Hold, GIVE_BACK] {
        let reply = Swap::first(&job, &me).after(b"started").then(then).to(&process, b"done").await;
        assert_eq!(reply, SwapReply::NotHeld { current: Some(b"started".to_vec()) });
    }
    Ok(())
}

/// A record that is not the expected one is reported and stays as it is, and so does the lease.
pub async fn a_record_is_compared_before_it_is_changed<F: Fixture>(fixture: &F) -> Checked {
    let (process, job, me) = (Process::start(fixture).await, name("job"), owner("me"));
    needs_records(&process)?;
    process.take(&job, &me, LONG).await;
    let reply = Swap::first(&job, &me).after(b"first").to(&process, b"second").await;
    assert_eq!(reply, SwapReply::Differs { current: None });
    assert_eq!(Swap::first(&job, &me).to(&process, b"first").await, SWAPPED);
    for then in [Then::Hold, GIVE_BACK] {
        for expected in [None, Some(&b"firs"[..]), Some(b"first "), Some(b"second")] {
            let swap = Swap { expected, ..Swap::first(&job, &me).then(then) };
            let current = Some(b"first".to_vec());
            assert_eq!(swap.to(&process, b"third").await, SwapReply::Differs { current }, "{expected:?}");
        }
    }
    assert_eq!(process.holder_label(&job).await.as_deref(), Some("me"));
    assert_eq!(Swap::first(&job, &me).after(b"first").to(&process, b"second").await, SWAPPED);
    assert_eq!(read(&process, &job).await.as_deref(), Some(&b"second"[..]));
    Ok(())
}

/// Writing the outcome gives the name back in the same step, and its waiter gets it.
pub async fn a_settled_name_is_free_or_its_waiters<F: Fixture>(fixture: &F) -> Checked {
    let (process, other) = (Process::start(fixture).await, Process::start(fixture).await);
    needs_records(&process)?;
    let (job, me, waiter) = (name("job"), owner("me"), owner("waiter"));
    process.take(&job, &me, LONG).await;
    assert_eq!(Swap::first(&job, &me).then(GIVE_BACK).to(&process, b"done").await, SWAPPED);
    assert_eq!(process.inspect(&job).await, None);
    needs_queue(&process)?;
    let next = owner("next");
    process.take(&job, &next, LONG).await;
    other.queue(&job, &waiter, LONG).await;
    let reply = Swap::first(&job, &next).after(b"done").then(GIVE_BACK).to(&process, b"again").await;
    assert_eq!(reply, SwapReply::Swapped { handed_over: true });
    other.wait_for_grant(fixture, &job, &waiter, LONG, LONG / 10).await;
    assert_eq!(read(&other, &job).await.as_deref(), Some(&b"again"[..]));
    Ok(())
}

/// `min_hold` holds for claims too.
pub async fn a_settled_name_can_be_kept_taken<F: Fixture>(fixture: &F) -> Checked {
    let (process, job, me) = (Process::start(fixture).await, name("job"), owner("me"));
    needs_records(&process)?;
    process.take(&job, &me, LONG).await;
    let keep = Then::Release { keep_for: Some(LONG) };
    assert_eq!(Swap::first(&job, &me).then(keep).to(&process, b"done").await, SWAPPED);
    process.refused(&job, &owner("other")).await;
    Ok(())
}

/// A record is gone after its time, and each change starts that anew.
pub async fn a_record_is_kept_for_its_time<F: Fixture>(fixture: &F) -> Checked {
    let (process, job, me) = (Process::start(fixture).await, name("job"), owner("me"));
    needs_records(&process)?;
    process.take(&job, &me, LONG).await;
    let brief = Swap { retain: SHORT, ..Swap::first(&job, &me) };
    assert_eq!(brief.to(&process, b"brief").await, SWAPPED);
    assert_eq!(Swap::first(&job, &me).after(b"brief").to(&process, b"long").await, SWAPPED);
    fixture.pass(SHORT * 2).await;
    assert_eq!(read(&process, &job).await.as_deref(), Some(&b"long"[..]));
    let brief = Swap { retain: SHORT, ..Swap::first(&job, &me).after(b"long") };
    assert_eq!(brief.to(&process, b"brief").await, SWAPPED);
    within(fixture, SHORT, "the record ends", async || read(&process, &job).await.is_none().then_some(()))
        .await;
    assert_eq!(Swap::first(&job, &me).to(&process, b"new").await, SWAPPED, "as if there had never been one");
    Ok(())
}

/// Records are any bytes, as large as the largest result and its line.
pub async fn records_are_kept_byte_for_byte<F: Fixture>(fixture: &F) -> Checked {
    let (process, me) = (Process::start(fixture).await, owner("me"));
    needs_records(&process)?;
    let every_byte: Vec<u8> = (0..=255).collect();
    let large: Vec<u8> = every_byte.iter().copied().cycle().take(MAX_RESULT_BYTES + 128).collect();
    for (number, record) in [&every_byte, &large].into_iter().enumerate() {
        let job = name(&format!("job {{{number}}}"));
        process.take(&job, &me, LONG).await;
        assert_eq!(Swap::first(&job, &me).to(&process, record).await, SWAPPED);
        assert!(read(&process, &job).await.as_deref() == Some(record), "{} bytes", record.len());
        let settled = Swap::first(&job, &me).after(record).then(GIVE_BACK).to(&process, record).await;
        assert_eq!(settled, SWAPPED);
    }
    Ok(())
}

/// Each name has its own record, and none of them is a name: lists and inspections do not show them.
pub async fn records_are_no_names<F: Fixture>(fixture: &F) -> Checked {
    let (process, me) = (Process::start(fixture).await, owner("me"));
    needs_records(&process)?;
    let (a, b) = (name("order:1"), name("order:11"));
    process.take(&a, &me, LONG).await;
    assert_eq!(Swap::first(&a, &me).then(GIVE_BACK).to(&process, b"done").await, SWAPPED);
    assert_eq!(read(&process, &b).await, None);
    assert_eq!(process.inspect(&a).await.map(|seen: Inspection| seen.name), None);
    let listing = process.store.list("", 10).await.unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(listing.entries, Vec::new());
    assert_eq!(fixture.endless_keys().unwrap_or_default(), Vec::<String>::new());
    Ok(())
}

/// Data that is no record is an error that says so, and stays as it is.
pub async fn a_record_that_is_no_record_is_left_untouched<F: Fixture>(fixture: &F) -> Checked {
    let (process, job, me) = (Process::start(fixture).await, name("job"), owner("me"));
    needs_records(&process)?;
    process.take(&job, &me, LONG).await;
    assert_eq!(Swap::first(&job, &me).to(&process, b"ours").await, SWAPPED);
    fixture.corrupt_record(&job)?;
    for then in [Then::Hold, GIVE_BACK] {
        let swap = Swap::first(&job, &me).after(b"ours").then(then);
        let reply = process.store.swap_record(swap.request(b"done")).await;
        assert_eq!(reply.map_err(|error| error.kind()), Err(ErrorKind::Foreign));
        let reply = process.store.read_record(&job).await;
        assert_eq!(reply.map_err(|error| error.kind()), Err(ErrorKind::Foreign));
    }
    assert_eq!(process.holder_label(&job).await.as_deref(), Some("me"));
    Ok(())
}
