//! What happens to a server, and what it wants done.

use alloc::collections::BTreeSet;
use alloc::sync::Arc;
use alloc::vec::Vec;

use crate::block::Table;
use crate::{
    Adopted, ApplicationId, BatchId, Fetch, FromServer, GroupId, Inventory, Limit, LinkId,
    MapRange, Push, ReadPiece, ServerId, ShuffleId, Storage, Tenant, ToMaster, ToNode, ToServer,
};

/// A connection from a writer or a reader. The host numbers them, and uses no number twice.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ConnectionId(pub u64);

/// Where rows are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    Memory,
    /// In memory, and on their way to a file.
    Spilling(u64),
    /// In a file.
    Run(u64),
}

impl Place {
    /// The run that it is in, or will be in.
    pub(crate) fn run(self) -> Option<u64> {
        match self {
            Self::Memory => None,
            Self::Spilling(run) | Self::Run(run) => Some(run),
        }
    }
}

/// What happens to a server.
#[derive(Clone, PartialEq, Debug)]
pub enum ServerEvent {
    /// Somebody has connected, who has this number at the master.
    Connected {
        from: ConnectionId,
        member: ServerId,
    },
    /// The master has dropped a process: it is gone here, too, whatever has become of its connections.
    Gone(ServerId),
    /// Somebody says something.
    Message {
        from: ConnectionId,
        message: ToServer,
    },
    /// Somebody wants partitions: several messages that came at once.
    Fetches {
        from: ConnectionId,
        fetches: Vec<Fetch>,
    },
    /// The bytes of an admitted push are in memory.
    Arrived {
        from: ConnectionId,
        /// What was announced.
        push: Push,
        /// The table of the batch. `None`: the bytes are not what was announced.
        table: Option<Table>,
    },
    /// A connection is gone.
    Disconnected(ConnectionId),
    /// A master wants to use this server.
    Governed {
        link: LinkId,
        /// What this server is called by it: by no other, and in no other link.
        me: ServerId,
        /// Its application, if it has one only.
        application: Option<ApplicationId>,
    },
    /// A master is there.
    Heard(LinkId),
    /// A link has ended, and with it the shuffles of its master.
    Ungoverned(LinkId),
    /// A master says something.
    Master { link: LinkId, message: ToNode },
    /// How much memory rows may take: beyond `target` they go to files, and beyond `limit` no more is
    /// let in.
    Budget {
        /// In bytes.
        target: u64,
        /// In bytes, at least the target.
        limit: u64,
    },
    /// What the process takes, and what it may take.
    Measured {
        /// In bytes.
        process: u64,
        /// In bytes.
        limit: u64,
        /// It answers [`ServerEffect::Measure`]: memory that nobody uses was given back before.
        is_least: bool,
    },
    /// The disks of these runs do nothing, and those of others do: what is being written there is not waited for,
    /// and what is to be read there may be at another copy.
    Stuck(BTreeSet<u64>),
    /// A run is written, or could not be.
    Spilled {
        run: u64,
        /// Whether all of it is there, or why not.
        written: Result<(), Arc<str>>,
    },
    /// An inventory is in the remote store, under this name, or could not be written.
    InventoryWritten {
        shuffle: ShuffleId,
        group: GroupId,
        number: u64,
        written: Result<Arc<str>, Arc<str>>,
    },
    /// An inventory was read. It has the number `first`, and its runs, in their order, the numbers that follow.
    /// `Err`: not all of it could be, or it is none. So many of these numbers are of objects that were opened.
    InventoryRead {
        shuffle: ShuffleId,
        group: GroupId,
        first: u64,
        found: Result<Adopted, u64>,
    },
    /// What a run has for a partition was read.
    Loaded {
        /// Which read.
        load: u64,
        run: u64,
        /// The pieces, of all attempts. `None`: it cannot be read.
        pieces: Option<Vec<ReadPiece>>,
    },
    /// Too much waits for a disk: a load for this read was not begun.
    Unloaded {
        /// The number of the loads.
        load: u64,
    },
    /// Reads of a disk take too long: applications that wait may have so many loads. None: they are as fast as
    /// they should be.
    Limited { disk: usize, limits: Vec<Limit> },
    /// The rows of a read have left: nothing of them is in memory for it any more.
    Sent {
        /// The number of the loads for it.
        load: u64,
    },
    /// A server that this one [told](ServerEffect::Tell) something answers.
    Peer(FromServer),
    /// The connection to such a server is gone, or cannot be made.
    Unreached(ServerId),
    /// Time has passed.
    Tick,
}

/// A piece that is sent to a reader, and where its rows are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sent {
    pub piece: ReadPiece,
    /// Where its batch is.
    pub place: Place,
    /// Where its rows begin among those of the batch, in bytes; of a batch in memory only.
    pub offset: u64,
}

/// [`FromServer::Rows`] with these pieces, and their bytes in this order, from memory or from what was loaded.
#[derive(Clone, PartialEq, Debug)]
pub struct ToSend {
    /// To whom.
    pub to: ConnectionId,
    /// The reader's number of the read.
    pub read: u64,
    /// The number of the loads for it.
    pub load: u64,
    pub shuffle: ShuffleId,
    pub group: GroupId,
    pub partition: u32,
    /// What to send.
    pub pieces: Vec<Sent>,
}

/// What a server wants done. Batches are named by shuffle, group and batch.
#[derive(Clone, PartialEq, Debug)]
pub enum ServerEffect {
    /// Answer somebody.
    Reply {
        /// Whom.
        to: ConnectionId,
        message: FromServer,
    },
    /// Let the bytes of a push in, and say [`ServerEvent::Arrived`].
    Admit { from: ConnectionId, push: Push },
    /// Keep what has just arrived under this name. Without this effect it is dropped.
    Store {
        shuffle: ShuffleId,
        group: GroupId,
        batch: BatchId,
    },
    /// Drop a batch from memory.
    Drop {
        shuffle: ShuffleId,
        group: GroupId,
        batch: BatchId,
    },
    /// Write these batches to a file, or to an object of the remote store, partition by partition, and say
    /// [`ServerEvent::Spilled`]. They stay in memory until [`ServerEffect::Drop`].
    Spill {
        /// The number of the run.
        run: u64,
        shuffle: ShuffleId,
        group: GroupId,
        storage: Storage,
        batches: Vec<BatchId>,
        /// Whose the shuffle is.
        tenant: Tenant,
    },
    /// Remove a run or an inventory, also one that is still being written.
    DropRun(u64),
    /// Forget a run or an inventory. Its object stays: another server may have adopted it.
    LeaveRun(u64),
    /// Write what a copy consists of to the remote store, and say [`ServerEvent::InventoryWritten`].
    WriteInventory {
        shuffle: ShuffleId,
        group: GroupId,
        /// Its number, among those of runs.
        number: u64,
        inventory: Inventory,
        /// The copy's runs, which are all in the remote store.
        runs: Vec<u64>,
    },
    /// Adopt what an inventory in the remote store has, and say [`ServerEvent::InventoryRead`]. From now on the
    /// objects are kept there.
    ReadInventory {
        shuffle: ShuffleId,
        group: GroupId,
        /// Its number. Those of its runs follow.
        first: u64,
        /// The name of the object.
        name: Arc<str>,
    },
    /// Read what a run has for a partition, keep it, and say [`ServerEvent::Loaded`].
    Load {
        /// The number of the read.
        load: u64,
        run: u64,
        partition: u32,
        /// Of these maps: all of theirs, and none of others. `None`: of all.
        maps: Option<MapRange>,
        /// Who reads.
        tenant: Tenant,
    },
    /// Send rows. Say [`ServerEvent::Sent`] when they are written, or cannot be.
    Send(ToSend),
    /// What was loaded for a read may go.
    Forget {
        /// The number of the loads.
        load: u64,
    },
    /// Something waits for memory of the process. Drop what is to be dropped, give back what nobody uses until
    /// the process takes no more than this, if it can, and say [`ServerEvent::Measured`].
    Measure {
        /// In bytes.
        most: u64,
    },
    /// Tell another server something. The bytes of a push are those of the batch here that has its name,
    /// in the copy of the same epoch, in memory or in a file.
    Tell {
        /// Whom.
        to: ServerId,
        message: ToServer,
    },
    /// Tell a master.
    Report { link: LinkId, message: ToMaster },
    /// This server does not serve a master, or does not any more. [`ServerEvent::Ungoverned`] may follow.
    Dismiss {
        link: LinkId,
        /// Why, for people.
        reason: &'static str,
    },
    /// Close a connection, with all that is to be sent on it. [`ServerEvent::Disconnected`] may follow.
    Disconnect(ConnectionId),
}
