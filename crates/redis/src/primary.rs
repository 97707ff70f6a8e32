//! Which server is the primary: the one of the URL, or the one that Sentinels tell, which may change. Asks
//! Sentinels through `sentinel`; makes no connection of its own and never decides when to reconnect.

use std::sync::{Mutex, MutexGuard, PoisonError};

use leasehold_core::Error;
use leasehold_core::mutation::{Rule, on};
use tokio::sync::Notify;

use crate::config::{Address, RedisConfig, Target};
use crate::sentinel;

/// What is known about the place of the primary.
#[derive(Debug, Default)]
pub(crate) struct Primary {
    place: Mutex<Place>,
    named_another: Notify,
}

#[derive(Debug, Default)]
struct Place {
    /// The one that is connected to, or was last.
    used: Option<Address>,
    /// Sentinels have named another one since somebody was last asked.
    moved: bool,
}

impl Primary {
    /// Where to connect now. Sentinels are asked each time: what they said earlier may be over.
    ///
    /// # Errors
    /// Why no Sentinel tells.
    pub(crate) async fn find(&self, config: &RedisConfig) -> Result<Address, Error> {
        self.place().moved = false;
        let address = match &config.target {
            Target::Server(address) => address.clone(),
            Target::Sentinel(sentinels) => sentinel::find_primary(sentinels, self.used().as_ref()).await?,
        };
        self.place().used = Some(address.clone());
        Ok(address)
    }

    /// The one that is connected to, or was last.
    pub(crate) fn used(&self) -> Option<Address> {
        self.place().used.clone()
    }

    /// Sentinels name this one.
    pub(crate) fn is_named(&self, address: &Address) {
        {
            let mut place = self.place();
            let same = place.used.as_ref().is_none_or(|used| used == address);
            if same || !on(Rule::FollowSentinels) {
                return;
            }
            place.moved = true;
        }
        self.named_another.notify_one();
    }

    /// Waits until another one is named than the one in use. Until [`Primary::find`] is called it stays so.
    pub(crate) async fn has_moved(&self) {
        loop {
            let notified = self.named_another.notified();
            if self.place().moved {
                return;
            }
            notified.await;
        }
    }

    fn place(&self) -> MutexGuard<'_, Place> {
        self.place.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What is in front of an error at a server that Sentinels named: its own address, and who named it.
pub(crate) fn named_by_sentinels(config: &RedisConfig, address: &Address, error: Error) -> Error {
    match &config.target {
        Target::Server(_) => error,
        Target::Sentinel(sentinels) => {
            let service = &sentinels.service;
            error.context(format_args!("{address}, the primary of {service:?} as its Sentinels tell"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(port: u16) -> Address {
        Address::Tcp { host: "127.0.0.1".into(), port, tls: None }
    }

    async fn moved(primary: &Primary) -> bool {
        tokio::time::timeout(std::time::Duration::from_millis(20), primary.has_moved()).await.is_ok()
    }

    #[tokio::test(start_paused = true)]
    async fn only_another_place_than_the_one_in_use_is_a_move_until_it_is_found() {
        let primary = Primary::default();
        primary.is_named(&address(2));
        assert!(!moved(&primary).await, "nothing is in use yet");
        let config = RedisConfig::from_url("redis://127.0.0.1:1/").unwrap();
        assert_eq!(primary.find(&config).await.unwrap(), address(1));
        primary.is_named(&address(1));
        assert!(!moved(&primary).await);
        primary.is_named(&address(2));
        assert!(moved(&primary).await && moved(&primary).await);
        primary.find(&config).await.unwrap();
        assert!(!moved(&primary).await);
    }
}
