//! The operations a case is made of. Indices are taken modulo what there is, so every sequence makes sense, and so
//! does every part of it.

use proptest::prelude::*;

pub(crate) const CLIENTS: usize = 3;

/// How a lease is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Renewed in the background for as long as it is held.
    Renewed,
    /// Ends by itself soon.
    Fixed,
}

/// What a store loses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Loss {
    /// The lease of the name.
    Lease,
    /// Everything.
    All,
}

/// What goes wrong on the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The reply to the next request of a client is lost.
    Reply(usize),
    /// Every connection breaks, and is made anew.
    Connections,
    /// The store does nothing for a moment.
    Stall,
}

/// One step of a case.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Step {
    Try {
        client: usize,
        kind: Kind,
    },
    /// Waits for a short time, to the end.
    WaitBriefly {
        client: usize,
    },
    /// Waits for ever, in the background.
    Wait {
        client: usize,
        kind: Kind,
    },
    /// A background wait is dropped.
    GiveUp {
        waiter: usize,
    },
    Renew {
        lease: usize,
    },
    Extend {
        lease: usize,
    },
    Release {
        lease: usize,
    },
    Drop {
        lease: usize,
    },
    Break {
        client: usize,
    },
    Inspect {
        client: usize,
    },
    List {
        client: usize,
    },
    /// The server's time of day is set to something else, where it can be.
    SetClock {
        ahead: bool,
    },
    /// Less time than a fixed lease lasts.
    PauseBriefly,
    /// More time than a fixed lease lasts.
    Pause,
    Lose(Loss),
    Fault(Fault),
}

pub(crate) fn any() -> impl Strategy<Value = Step> {
    let client = 0..CLIENTS;
    let index = 0..8_usize;
    let kind = prop_oneof![2 => Just(Kind::Renewed), 1 => Just(Kind::Fixed)];
    prop_oneof![
        8 => (client.clone(), kind.clone()).prop_map(|(client, kind)| Step::Try { client, kind }),
        3 => client.clone().prop_map(|client| Step::WaitBriefly { client }),
        8 => (client.clone(), kind).prop_map(|(client, kind)| Step::Wait { client, kind }),
        3 => index.clone().prop_map(|waiter| Step::GiveUp { waiter }),
        2 => index.clone().prop_map(|lease| Step::Renew { lease }),
        2 => index.clone().prop_map(|lease| Step::Extend { lease }),
        9 => index.clone().prop_map(|lease| Step::Release { lease }),
        4 => index.prop_map(|lease| Step::Drop { lease }),
        2 => client.clone().prop_map(|client| Step::Break { client }),
        3 => client.clone().prop_map(|client| Step::Inspect { client }),
        1 => client.clone().prop_map(|client| Step::List { client }),
        1 => proptest::bool::ANY.prop_map(|ahead| Step::SetClock { ahead }),
        2 => Just(Step::PauseBriefly),
        3 => Just(Step::Pause),
        1 => prop_oneof![Just(Step::Lose(Loss::Lease)), Just(Step::Lose(Loss::All))],
        1 => prop_oneof![
            client.prop_map(|client| Step::Fault(Fault::Reply(client))),
            Just(Step::Fault(Fault::Connections)),
            Just(Step::Fault(Fault::Stall)),
        ],
    ]
}
