//! Settings, and the guards.

use core::time::Duration;

/// Settings.
#[derive(Clone, Debug)]
pub struct Config {
    /// Bytes that one process pushes and that are not acknowledged, to all servers together. A batch
    /// that is larger goes alone.
    pub window: u64,
    /// The same to one server.
    pub server_window: u64,
    /// Bytes that one server writes to a file at once, about.
    pub run: u64,
    /// Announced pushes that a server keeps waiting, at most. Others are told to come later.
    pub parked: usize,
    /// For how long something may be waited for: a plan that a push is ahead of, room for a batch, a
    /// server that cannot be reached.
    pub patience: Duration,
    /// The pause before something is tried again; it doubles each time, up to 32 of it.
    pub pause: Duration,
    /// How often the rows of one shuffle may be found damaged before its barrier fails.
    pub repairs: u32,
    /// What keeps the shuffle correct.
    pub guards: Guards,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            window: 64 << 20,
            server_window: 16 << 20,
            run: 64 << 20,
            parked: 1 << 16,
            patience: Duration::from_secs(30),
            pause: Duration::from_millis(10),
            repairs: 5,
            guards: Guards::default(),
        }
    }
}

macro_rules! guards {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Checks that keep a shuffle correct. Simulations switch them off one by one, to prove that
        /// they notice. Without the feature `guards` they are constants.
        #[derive(Clone, Copy, Debug)]
        #[doc(hidden)]
        pub struct Guards {
            $($(#[$doc])* #[cfg(feature = "guards")] pub $name: bool,)*
        }

        impl Default for Guards {
            fn default() -> Self {
                Self { $(#[cfg(feature = "guards")] $name: true,)* }
            }
        }
    };
}

guards! {
    /// Only rows of the attempts that won are returned.
    attempt,
    /// What was meant for another assignment of partitions is refused.
    generation,
    /// What a server has is compared with the receipts.
    receipts,
    /// Rows come in the order of their inputs.
    order,
    /// Rows are compared with their digests when they are read.
    digest,
    /// A process that comes back is another server.
    incarnation,
    /// A batch that comes again changes nothing.
    duplicates,
}

/// Whether a guard is on: always, without the feature.
macro_rules! guard {
    ($config:expr, $name:ident) => {{
        #[cfg(feature = "guards")]
        let is_on = $config.guards.$name;
        #[cfg(not(feature = "guards"))]
        let is_on = true;
        is_on
    }};
}

pub(crate) use guard;

/// The pause before the next try, after so many in vain.
pub(crate) fn pause(config: &Config, tries: u32) -> Duration {
    config.pause * (1 << tries.min(5))
}
