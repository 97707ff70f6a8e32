//! What a server, a service of Sentinels or a cluster guarantees with the settings of a URL. It states; `docs/guarantees.md`
//! names the tests.

use leasehold_core::{Fault, Guarantees, Outcome, Promise};

use crate::cluster::ClusterConfig;
use crate::config::{RedisConfig, Target};

/// One server. Another one never takes its place, so a partition only takes its clients away.
const SERVER: Guarantees = Guarantees::new(
    Promise::always(Outcome::CanBreak)
        .except(Fault::CrashKeepingData, Outcome::Holds)
        .except(Fault::Failover, Outcome::CannotHappen)
        .except(Fault::Partition, Outcome::Holds),
    Promise::always(Outcome::Holds).except(Fault::Failover, Outcome::CannotHappen),
);

/// Primaries with replicas that take their place, whoever decides it: a crash of any kind is a failover, and a partition makes two primaries
/// for a while. What a replica has not heard of is lost, however many others have confirmed it.
const WITH_REPLICAS: Guarantees = Guarantees::new(
    Promise::always(Outcome::CanBreak),
    Promise::always(Outcome::Holds)
        .except(Fault::CrashKeepingData, Outcome::HoldsIfClocksAgree)
        .except(Fault::CrashLosingData, Outcome::HoldsIfClocksAgree)
        .except(Fault::Failover, Outcome::HoldsIfClocksAgree)
        .except(Fault::Partition, Outcome::HoldsIfClocksAgree),
);

impl RedisConfig {
    /// What this server or service guarantees with these settings.
    pub fn guarantees(&self) -> Guarantees {
        let guarantees = match &self.target {
            Target::Server(_) => SERVER,
            Target::Sentinel(_) => WITH_REPLICAS,
        };
        if self.scripting { guarantees } else { guarantees.unfenced() }
    }
}

impl ClusterConfig {
    /// What this cluster guarantees, for each name by itself.
    pub fn guarantees(&self) -> Guarantees {
        WITH_REPLICAS
    }
}
