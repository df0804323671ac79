//! What goes into a [`Pair`](crate::Pair), what comes out of it, and what peers tell each other.

use alloc::string::String;
use alloc::vec::Vec;
use core::time::Duration;

use thiserror::Error;

/// An object, numbered by its sender in the order of sending.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TransferId(pub u64);

/// A stripe, numbered by the side that sends on it; a replacement gets a number of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StripeId(pub u32);

/// How a pair behaves. All limits are per pair and direction.
#[derive(Clone, Debug)]
pub struct Config {
    /// Whether this side dials stripes; the other side asks it to.
    pub dials: bool,
    /// The number of stripes to use for sending; `None` lets the measured rate decide.
    pub stripes: Option<usize>,
    /// The most stripes to try when the rate decides.
    pub max_stripes: usize,
    /// Silence after which the other side is gone.
    pub timeout: Duration,
    /// Credit for headers that the application has not taken, in bytes.
    pub credit: u64,
    /// Bytes of regions that are accepted before the application asks for them.
    pub prefetch: u64,
    /// The largest object to receive, in bytes.
    pub max_object: u64,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            dials: true,
            stripes: None,
            max_stripes: 16,
            timeout: Duration::from_secs(30),
            credit: 8 << 20,
            prefetch: 1 << 20,
            max_object: crate::layout::MAX_BYTES,
        }
    }
}

/// A piece of an object that travels as one: `length` bytes of a region, from `offset`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    pub object: TransferId,
    /// Index of the region.
    pub region: u32,
    /// First byte within the region.
    pub offset: u64,
    /// Bytes.
    pub length: u64,
}

/// What one side tells the other on the control connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// An object: its header. The driver sends the frames' sizes and the inline bytes with it.
    Offer {
        /// The object; numbers only grow.
        object: TransferId,
        /// The length of each region in bytes.
        regions: Vec<u64>,
        /// What the header costs the receiver's memory, in bytes.
        cost: u64,
        /// The regions are offered as shared memory; the descriptors come by another way.
        shared: bool,
    },
    /// Receiver: the regions have their memory, send them on stripes.
    Accept { object: TransferId },
    /// Receiver: the object is not wanted, or there is no memory for it.
    Refuse {
        object: TransferId,
        /// Why, for the sender's error.
        reason: String,
    },
    /// Receiver: every byte is in place and verified.
    Placed { object: TransferId },
    /// Sender: nothing more of the object will come.
    Cancel { object: TransferId },
    /// Receiver: headers that cost this much were taken.
    Credit { bytes: u64 },
    /// Sender: open this stripe for me (the listening side cannot dial).
    Dial {
        /// The sender's new stripe.
        stripe: StripeId,
    },
    /// The stripe that was asked for cannot be opened.
    DialFailed {
        stripe: StripeId,
        /// Why.
        reason: String,
    },
    /// Sender: the stripe is broken at my end; close it and report.
    Broken { stripe: StripeId },
    /// Receiver: the stripe ended after this many whole, intact extents.
    Report {
        stripe: StripeId,
        /// Whole, intact extents that it carried.
        extents: u64,
        /// It ended because the extent after them was damaged.
        corrupt: bool,
    },
    /// Are you there?
    Ping {
        /// Comes back.
        token: u64,
    },
    /// Yes.
    Pong {
        /// The ping's.
        token: u64,
    },
    /// Nothing more will come, and nothing more is wanted.
    Goodbye,
}

/// What happened.
#[derive(Clone, Debug)]
pub enum Event {
    /// The application sends an object.
    Send {
        /// Its number: larger than all before.
        object: TransferId,
        /// The length of each region in bytes.
        regions: Vec<u64>,
        /// What its header costs the receiver, in bytes.
        cost: u64,
        /// Offer the regions as shared memory.
        shared: bool,
    },
    /// The application gives up an object that it sends.
    Cancel(TransferId),
    /// The regions of an offered object have their memory.
    Accept(TransferId),
    /// The regions of an offered object are mapped: nothing needs to travel.
    Mapped(TransferId),
    /// The application does not want an offered object, or there is no memory for it.
    Refuse(TransferId, String),
    /// The application took an object that is complete.
    Take(TransferId),
    /// The other side said something.
    Received(Message),
    /// An outgoing stripe is connected.
    Opened(StripeId),
    /// An outgoing stripe could not be opened at this end.
    OpenFailed(StripeId, String),
    /// An outgoing stripe's socket took bytes; or, with 0, the other side acknowledged some of what
    /// the socket holds. A driver tells the latter (on Linux `SIOCOUTQ` says it) while a stripe has
    /// nothing left to write: a full buffer may take longer than the timeout on a slow network, and
    /// without any sign of progress the stripe would count as stalled.
    Drained(StripeId, u64),
    /// The network lost so many bytes of an outgoing stripe, and they were sent again.
    Retransmitted(StripeId, u64),
    /// An outgoing stripe broke.
    Lost(StripeId),
    /// An incoming stripe was connected.
    Joined(StripeId),
    /// A stripe that was to be connected for the other side cannot be.
    DialFailed(StripeId, String),
    /// The extent that was begun on an incoming stripe is there.
    Arrived {
        stripe: StripeId,
        /// Whether the checksum agrees.
        intact: bool,
    },
    /// An incoming stripe's connection ended, for whatever reason.
    Ended(StripeId),
    /// Time passed.
    Tick,
    /// This process was stopped for some time, and heard nobody meanwhile: nobody was silent.
    Woke,
    /// The other side is to say now that it is there. What it has to say may all be for others.
    Probe,
}

/// Why an object did not arrive.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Failure {
    /// The receiver did not take it.
    #[error("the receiver refused the object: {0}")]
    Refused(String),
    /// The sender gave it up.
    #[error("the transfer was cancelled")]
    Cancelled,
    /// Its header exceeds what the receiver's credit can ever allow.
    #[error(
        "the object's header takes {cost} bytes and the receiver allows {limit}: \
         send fewer frames at a time, or give the receiver more credit"
    )]
    Header {
        /// What the header costs, in bytes.
        cost: u64,
        limit: u64,
    },
    /// Its bytes arrived damaged again and again.
    #[error("{0} extents of the object arrived damaged; check the network between the two hosts")]
    Corrupt(u32),
    /// The pair ended before it was complete.
    #[error("{0}")]
    Pair(PairEnd),
}

/// Why a pair ended.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum PairEnd {
    /// The other side said goodbye.
    #[error("the peer closed the connection")]
    Goodbye,
    /// Nothing was heard for the timeout.
    #[error("the peer has been silent for {:.1} s", .0.as_secs_f64())]
    Silent(Duration),
    /// The control connection broke, or a side broke the protocol.
    #[error("{0}")]
    Lost(String),
    /// No stripe can be opened.
    #[error("no data connection to the peer can be opened: {0}")]
    NoStripe(String),
}

/// What must be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Tell the other side.
    Tell(Message),
    /// Connect this outgoing stripe; answer with `Opened` or `OpenFailed`.
    Dial(StripeId),
    /// Connect this stripe for the other side, which will send on it.
    DialForPeer(StripeId),
    /// An outgoing stripe may have extents to send again: ask `next_extent`.
    Wake(StripeId),
    /// Close an outgoing stripe after what was handed to it.
    Retire(StripeId),
    /// Close an outgoing stripe at once.
    Drop(StripeId),
    /// Close an incoming stripe at once; `Ended` follows when nobody reads it any more.
    DropIncoming(StripeId),
    /// The memory of an object that was sent may be reused.
    Sent(TransferId),
    /// An object could not be sent.
    SendFailed(TransferId, Failure),
    /// An object's header arrived; it is the next to be received after all before it.
    Offered(TransferId),
    /// There is prefetch budget for this object: give it memory and answer `Accept` or `Refuse`.
    Allocate(TransferId),
    /// Every byte of an incoming object is in place.
    Complete(TransferId),
    /// An incoming object will not be completed.
    ReceiveFailed(TransferId, Failure),
    /// The pair is over.
    End(PairEnd),
}

/// The other side broke the protocol.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Violation {
    /// An object's number did not grow.
    #[error("object {0} was offered after object {1}")]
    Order(u64, u64),
    /// An object exceeds the limit.
    #[error("an object of {bytes} bytes was offered; the limit is {limit}")]
    TooLarge {
        /// The object's bytes.
        bytes: u64,
        limit: u64,
    },
    /// An object has more regions than frames are allowed.
    #[error("an object of {0} regions was offered; the limit is {limit}", limit = crate::layout::MAX_FRAMES)]
    Regions(usize),
    /// More headers than the credit allows.
    #[error("headers exceed the credit by {0} bytes")]
    Credit(u64),
    /// An extent that the object does not have.
    #[error(
        "an extent at {offset} of {length} bytes in region {region} of object {object}, which has none there"
    )]
    NoSuchExtent {
        object: u64,
        region: u32,
        /// The offset in bytes.
        offset: u64,
        /// The length in bytes.
        length: u64,
    },
    /// The same extent twice.
    #[error("an extent of object {0} arrived twice")]
    Twice(u64),
    /// A message about something that does not exist.
    #[error("a message about {0}, which does not exist")]
    Unknown(&'static str),
    /// A stripe that was not asked for.
    #[error("stripe {0} was opened twice, or there are too many")]
    Stripe(u32),
}
