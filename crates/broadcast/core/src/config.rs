//! Settings.

use core::time::Duration;

use crate::plan::Network;

/// Settings of a node. All nodes of a cluster have the same, but for [`Config::network`]
/// and [`Config::processors`].
#[derive(Clone, Debug)]
pub struct Config {
    /// Payloads of at most so many bytes travel in the offer.
    pub inline: u64,
    /// At most so many bytes of a payload are on the way to a child.
    pub window: u64,
    /// So much of a payload the top sends in pieces that travel in their messages; what comes after it
    /// asks to be let in, which takes a round trip, and has sockets of its own.
    pub ahead: u64,
    /// How many casts of a session may be unsettled. The top refuses more.
    pub outstanding: usize,
    /// So many members are introduced in one message.
    pub introduced: usize,
    /// How long a result waits for others before it goes up.
    pub flush: Duration,
    /// How long a node waits for an offer that says by the way what is settled.
    pub settle: Duration,
    /// After so long without progress of a payload another parent is asked for it.
    pub stall: Duration,
    /// A child that has taken others and says nothing for so long is passed over.
    pub silence: Duration,
    /// How often a node says that it is there to those to whom it owes results of others; several
    /// times within [`Config::silence`].
    pub beat: Duration,
    /// After so long without a word from above a node asks the top what is settled.
    pub ask: Duration,
    /// How long the top waits before it tries again to reach a member that nobody could; doubled each
    /// time.
    pub retry: Duration,
    /// How long the top tries, before the member's result is [`Unreachable`](crate::Outcome).
    pub unreachable: Duration,
    /// Between hosts, for the plan. Only the top's counts.
    pub network: Network,
    /// Within a host, for the plan. Only the top's counts.
    pub local: Network,
    /// Processors of this host, for [`children`](crate::plan::children); 0: enough for all members.
    pub processors: u64,
}

treadle_guards::guards! {
    /// Checks that keep the plane correct.
    #[doc(hidden)]
    pub enum Guard {
        /// An engine runs a cast when it has finished the one before.
        Order,
        /// What was aborted is not settled before what it stands behind.
        SettleOrder,
        /// An engine never runs a number again.
        Once,
        /// Results are kept until they are settled.
        Keeping,
        /// Who gave members to a child is responsible for them again when the child is lost.
        Responsibility,
        /// No more than a window is on the way to a child.
        Window,
        /// What comes from the dead is refused.
        Dead,
        /// An offer of a later version takes members out of an earlier tree.
        Version,
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            inline: 64 << 10,
            window: 4 << 20,
            ahead: 32 << 20,
            outstanding: 256,
            introduced: 1024,
            flush: Duration::from_millis(10),
            settle: Duration::from_millis(50),
            stall: Duration::from_secs(1),
            silence: Duration::from_secs(2),
            beat: Duration::from_millis(250),
            ask: Duration::from_secs(5),
            retry: Duration::from_millis(250),
            unreachable: Duration::from_secs(30),
            network: Network::default(),
            local: Network::within_host(),
            processors: 0,
        }
    }
}
