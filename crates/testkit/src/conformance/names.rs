//! Names are what users wrote, to the byte, whatever they look like to the store; lists of them.

use std::collections::BTreeSet;

use leasehold_core::Name;
use leasehold_core::store::{BreakMode, Holder, Listing, ReleaseReply, RenewReply};

use super::actors::{LONG, Process, name, owner};
use super::{Checked, Fixture};

/// Names that some store might take for a pattern, a hash tag, a quotation, or for each other.
const PECULIAR: &[&str] = &[
    "job",
    "Job",
    "JOB",
    "job ",
    " job",
    "job:",
    "jo",
    "job%",
    "job_",
    "j_b",
    "j%b",
    "job*",
    "j?b",
    "[job]",
    "j[oa]b",
    "j[^x]b",
    "\\job",
    "j\\*b",
    "j\\\\b",
    "{job}",
    "{}job",
    "}{job",
    "{job",
    "job}",
    "{a}{b}",
    "{{a}}",
    "'job'",
    "\"job\"",
    "job;--",
    "job$1",
    "$job",
    "-job",
    "1",
    "01",
    "1 grant 5",
    "order:1001",
    "żółć",
    "zolc",
    "caf\u{e9}",
    "cafe\u{301}",
    "名前",
    "🔒",
    "queue:{x}:job",
    "fence",
    "NULL",
    "null",
    "a/b/../c",
    "a\u{a0}b",
];

/// Trap 40: each name is a lock of its own, for every operation.
pub async fn names_are_taken_literally<F: Fixture>(fixture: &F) -> Checked {
    let (process, other) = (Process::start(fixture).await, Process::start(fixture).await);
    let owners: Vec<_> = (0..PECULIAR.len()).map(|number| owner(&format!("owner-{number}"))).collect();
    let rival = owner("rival");
    for (each, owner) in PECULIAR.iter().zip(&owners) {
        process.take(&name(each), owner, LONG).await;
    }
    for (each, owner) in PECULIAR.iter().zip(&owners) {
        let job = name(each);
        let held = other.refused(&job, &rival).await;
        assert_eq!(held.holder, Holder::Lease { label: owner.label().into() }, "{each:?}");
        assert_eq!(process.renew(&job, owner, LONG).await, RenewReply::Renewed, "{each:?}");
        if other.store.capabilities().queue {
            other.queue(&job, &rival, LONG).await;
            other.release(&job, &rival).await;
        }
    }
    let taken = names_of(&list(&process, "", 1_000).await);
    assert_eq!(taken, PECULIAR.iter().map(|each| (*each).to_owned()).collect());
    for (number, (each, owner)) in PECULIAR.iter().zip(&owners).enumerate() {
        let job = name(each);
        if number % 2 == 0 {
            assert_eq!(process.release(&job, owner).await, ReleaseReply::Freed { handed_over: false });
        } else {
            process.break_lease(&job, BreakMode::Now).await;
        }
        assert_eq!(other.inspect(&job).await, None, "{each:?}");
    }
    Ok(())
}

/// 512 bytes, of characters with several of them.
pub async fn the_longest_name_works<F: Fixture>(fixture: &F) -> Checked {
    let (process, me) = (Process::start(fixture).await, owner("me"));
    for long in ["x".repeat(Name::MAX_BYTES), "é".repeat(Name::MAX_BYTES / 2)] {
        let job = name(&long);
        process.take(&job, &me, LONG).await;
        assert_eq!(names_of(&list(&process, &long, 10).await), BTreeSet::from([long]));
        assert_eq!(process.release(&job, &me).await, ReleaseReply::Freed { handed_over: false });
    }
    Ok(())
}

/// Names that are taken, and no others.
pub async fn a_list_has_the_taken_names_of_a_prefix<F: Fixture>(fixture: &F) -> Checked {
    let (process, me) = (Process::start(fixture).await, owner("me"));
    assert_eq!(list(&process, "", 10).await, Listing::default());
    for each in ["order:1", "order:2", "order", "report:1", "order:3"] {
        process.take(&name(each), &me, LONG).await;
    }
    process.release(&name("order:3"), &me).await;
    let expect = |names: &[&str]| names.iter().map(|each| (*each).to_owned()).collect::<BTreeSet<_>>();
    let all = expect(&["order", "order:1", "order:2", "report:1"]);
    for (prefix, expected) in [
        ("", all),
        ("order:", expect(&["order:1", "order:2"])),
        ("order", expect(&["order", "order:1", "order:2"])),
        ("report:1", expect(&["report:1"])),
        ("rder", BTreeSet::new()),
    ] {
        let listing = list(&process, prefix, 100).await;
        assert_eq!(names_of(&listing), expected, "{prefix:?}");
        assert!(!listing.more, "{prefix:?}");
    }
    Ok(())
}

/// Not more than asked for, and it says that there is more.
pub async fn a_list_is_limited<F: Fixture>(fixture: &F) -> Checked {
    let (process, me) = (Process::start(fixture).await, owner("me"));
    for number in 0..30 {
        process.take(&name(&format!("job-{number}")), &me, LONG).await;
    }
    let some = list(&process, "job-", 7).await;
    assert_eq!((some.entries.len(), some.more), (7, true));
    assert_eq!(names_of(&some).len(), 7);
    let all = list(&process, "job-", 100).await;
    assert_eq!((names_of(&all).len(), all.more), (30, false));
    Ok(())
}

/// Who holds each, and for how long.
pub async fn a_list_shows_holders<F: Fixture>(fixture: &F) -> Checked {
    let process = Process::start(fixture).await;
    let early = owner("early");
    process.take(&name("held"), &owner("me"), LONG).await;
    process.take(&name("broken"), &owner("victim"), LONG).await;
    process.break_lease(&name("broken"), BreakMode::Notice).await;
    process.take(&name("kept"), &early, LONG).await;
    process.release_early(&name("kept"), &early, LONG).await;
    let listing = list(&process, "", 10).await;
    assert_eq!(listing.entries.len(), 3);
    for entry in listing.entries {
        let expected = match entry.name.as_str() {
            "held" => Holder::Lease { label: "me".into() },
            "broken" => Holder::Broken { by: "operator".into() },
            _ => Holder::Kept { by: "early".into() },
        };
        assert_eq!(entry.holder, Some(expected), "{}", entry.name);
        assert!(entry.remaining.is_some_and(|left| left <= LONG && left > LONG / 2), "{entry:?}");
    }
    Ok(())
}

/// A prefix is no pattern, and case matters.
pub async fn prefixes_are_taken_literally<F: Fixture>(fixture: &F) -> Checked {
    let (process, me) = (Process::start(fixture).await, owner("me"));
    for each in PECULIAR {
        process.take(&name(each), &me, LONG).await;
    }
    let prefixes = ["j", "J", "j*", "j?", "j[", "j_", "j%", "j\\", "\\", "[", "{", "{}", "*", "%", "_", "'"];
    for prefix in prefixes.into_iter().chain(PECULIAR.iter().copied()) {
        let expected: BTreeSet<_> =
            PECULIAR.iter().filter(|each| each.starts_with(prefix)).map(|each| (*each).to_owned()).collect();
        assert_eq!(names_of(&list(&process, prefix, 1_000).await), expected, "{prefix:?}");
    }
    Ok(())
}

async fn list(process: &Process, prefix: &str, limit: usize) -> Listing {
    let listing = process.store.list(prefix, limit).await;
    listing.unwrap_or_else(|error| panic!("list of {prefix:?}: {error}"))
}

fn names_of(listing: &Listing) -> BTreeSet<String> {
    listing.entries.iter().map(|entry| entry.name.as_str().to_owned()).collect()
}
