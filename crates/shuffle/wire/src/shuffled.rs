//! What the parts of the shuffle plane tell each other, and what a transfer returns. Rows are in
//! frames of their own.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::time::Duration;

use prost::Message as _;
use treadle_codec::{
    Codec, Column, Delta, Detacher, MOST, ObjectNumber, Schema, Sparse, Varint, Wire, WireError,
    at_most, columns_of_newtype, columns_of_struct, wire_columns, wire_enum, wire_ids,
    wire_required, wire_struct, wire_wrapped,
};
use treadle_shuffle::{
    Answer, ApplicationId, Ask, AttemptId, BatchId, Chosen, Commit, CommitError, Expected, Fetch,
    FromServer, Generation, Group, GroupId, MapRange, MapSet, Plan, Push, ReadPiece, Receipt,
    Refusal, Seal, ServerId, Share, ShuffleId, Tally, Tenant, ToMaster, ToNode, ToServer, Transfer,
    Uploaded, Usage, Verdict, Winners,
};
use treadle_types::Runs;

use crate::proto::{
    self, answer, committed, from_server, refusal, to_master, to_node, to_server, verdict,
};

/// The schema `proto/shuffle.proto`.
#[derive(Debug)]
pub enum Shuffle {}

impl Schema for Shuffle {}

/// Positions of the winners of all groups of a commit, at most: 6,700 groups with rows of 40,000 maps.
const MOST_POSITIONS: u64 = 1 << 28;
/// What is a frame, or a value, of its own: [`ToNode`], [`ToMaster`], [`ToServer`], [`FromServer`] or
/// [`Receipt`].
pub trait Shuffled: Wire<Self::Message, Shuffle> {
    /// The generated type.
    #[doc(hidden)]
    type Message: prost::Message + Default;
}

/// A message as a frame, or a receipt as a value.
pub fn encode_shuffled<M: Shuffled>(message: &M) -> Vec<u8> {
    Shuffle::to_wire::<M::Message, _>(message).encode_to_vec()
}

/// The inverse of [`encode_shuffled`].
///
/// # Errors
/// For other bytes.
pub fn decode_shuffled<M: Shuffled>(bytes: &[u8]) -> Result<M, WireError> {
    M::of_wire(M::Message::decode(bytes)?, Detacher::new(bytes.len()))
}

macro_rules! shuffled {
    ($($own:ident),*) => {$(
        impl Shuffled for $own {
            type Message = proto::$own;
        }
    )*};
}

shuffled! { ToNode, ToMaster, ToServer, FromServer, Receipt }

wire_ids! { Shuffle:
    Generation => u32;
    ShuffleId => u64;
    AttemptId => u64;
    ApplicationId => u64;
}

wire_struct! { Shuffle:
    ServerId => proto::Server { node, incarnation };
    GroupId => proto::Group { epoch, server };
    BatchId => proto::Batch { map, attempt, number };
    Transfer => proto::Transfer { shuffle, map, attempt };
    Tally => proto::Tally { rows, bytes, digest };
    Receipt => proto::Receipt { transfer, shares } check |receipt: Receipt| {
        ascending("shares", &receipt.shares, |share| share.group).map(|()| receipt)
    };
    Expected => proto::Expected { winners, tally };
    Plan => proto::Plan {
        shuffle, generation, opened, is_final, tenant, maps, partitions, groups,
    } check fits;
    Tenant => proto::Tenant { application, priority };
    Seal => proto::Seal { shuffle, generation, group, round, expected };
    Push => proto::Push { shuffle, group, batch, tally, length };
    Ask => proto::Ask { group, transfer, tally };
    Fetch => proto::Fetch { read, shuffle, generation, group, partition, maps, reader };
    MapRange => proto::MapRange { first, end };
    Uploaded => proto::Uploaded { inventory, mark };
    Usage => proto::Usage {
        reads, read_bytes, pushed, stored, spilled, loaded, again, failed, gathering, pushing,
        comparing, reading,
    };
}

wire_required! { Shuffle:
    ServerId => proto::Server, "server";
    GroupId => proto::Group, "group";
    BatchId => proto::Batch, "batch";
    Transfer => proto::Transfer, "transfer";
    Tally => proto::Tally, "tally";
    Tenant => proto::Tenant, "tenant";
    Expected => proto::Expected, "expected";
    Usage => proto::Usage, "usage";
    Verdict => proto::Verdict, "verdict";
    Answer => proto::Answer, "answer";
    Refusal => proto::Refusal, "refusal";
}

wire_wrapped! { Shuffle:
    ToNode => proto::ToNode { message };
    ToMaster => proto::ToMaster { message };
    ToServer => proto::ToServer { message };
    FromServer => proto::FromServer { message };
    Verdict => proto::Verdict { verdict };
    Answer => proto::Answer { answer };
    Refusal => proto::Refusal { reason };
}

wire_enum! { Shuffle:
    ToNode => to_node::Message {
        values { Plan, Close, Seal }
        structs { Committed: proto::Committed { shuffle, ask, result } }
    }
}

wire_enum! { Shuffle:
    CommitError => committed::Result {
        values { Again, Ended, Late }
        structs { Damaged: proto::DamagedRows { shuffle, group, expected, found, missing } }
        from(_detacher) { committed::Result::Generation(_) => return Err(WireError::Missing("error")) }
    }
}

wire_enum! { Shuffle:
    ToMaster => to_master::Message {
        values { Join }
        structs {
            Transferred: proto::Transferred { transfer, groups, tally },
            Sealed: proto::Sealed { shuffle, group, round, verdict },
            Differs: proto::Differs { shuffle, group, map, is_late },
            Damaged: proto::Damaged { shuffle, group },
            Poisoned: proto::Poisoned { shuffle, group },
            Slow: proto::Slow { shuffle, server, times },
            Full: proto::Full { shuffle, group },
            Measured: proto::Measured { shuffle, group, partitions, sizes },
            Used: proto::Used { shuffle, usage },
        }
        to {
            Self::Commit { ask, commit } => to_master::Message::Commit(commit_to_wire(*ask, commit)),
            Self::Filled { shuffle, group, source, is_sealed } => {
                to_master::Message::Filled(proto::Filled {
                    shuffle: shuffle.0,
                    group: Shuffle::to_wire(group),
                    is_sealed: *is_sealed,
                    source: Shuffle::to_wire(source),
                    uploaded: None,
                })
            },
            Self::Uploaded { shuffle, group, uploaded } => {
                to_master::Message::Filled(proto::Filled {
                    shuffle: shuffle.0,
                    group: Shuffle::to_wire(group),
                    is_sealed: true,
                    source: Shuffle::to_wire(group),
                    uploaded: Some(Shuffle::to_wire(uploaded)),
                })
            },
        }
        from(detacher) {
            to_master::Message::Commit(wire) => {
                let ask = wire.ask;
                Self::Commit { ask, commit: commit_of_wire(wire, detacher)? }
            },
            to_master::Message::Filled(wire) => filled_of_wire(wire, detacher)?,
        }
    }
}

wire_enum! { Shuffle:
    Verdict => verdict::Verdict {
        units { Complete, Differs }
        structs { Short: proto::Short { found, missing } }
    }
}

wire_enum! { Shuffle:
    ToServer => to_server::Message {
        values { Push, Ask, Fetch }
        structs {
            Abandon: proto::Abandon { group, transfer },
            Adopt: proto::Adopt { shuffle, group, source, expected },
            Cancel: proto::Cancel { read },
            Pushes: proto::Pushes { pushes },
        }
    }
}

wire_enum! { Shuffle:
    FromServer => from_server::Message {
        structs {
            Acked: proto::Acked { shuffle, group, batch },
            Refused: proto::Refused { shuffle, group, batch, reason },
            Answer: proto::Answered { group, transfer, answer },
            Rows: proto::Rows { read, tally, pieces },
            Unread: proto::Unread { read, reason },
        }
    }
}

wire_enum! { Shuffle:
    Answer => answer::Answer {
        units { Missing, Differs }
        values { Have, Won, Refused }
    }
}

wire_enum! { Shuffle:
    Refusal => refusal::Reason {
        units { Unknown, Sealed, Unsealed, Busy, Malformed, Damaged, Alone }
        values { Stranger, Stale, NoRoom }
        to { Self::Sleep(pause) => refusal::Reason::Sleep(pause.as_micros() as u64) }
        from(_detacher) {
            refusal::Reason::Sleep(micros) => Self::Sleep(Duration::from_micros(micros)),
        }
    }
}

impl Wire<Option<committed::Result>, Shuffle> for Result<Generation, CommitError> {
    fn to_wire(&self) -> Option<committed::Result> {
        Some(match self {
            Ok(generation) => committed::Result::Generation(generation.0),
            Err(error) => Shuffle::to_wire(error),
        })
    }

    fn of_wire(wire: Option<committed::Result>, detacher: Detacher) -> Result<Self, WireError> {
        Ok(match wire.ok_or(WireError::Missing("result"))? {
            committed::Result::Generation(generation) => Ok(Generation(generation)),
            error => Err(Wire::<_, Shuffle>::of_wire(error, detacher)?),
        })
    }
}

impl Wire<proto::Assigned, Shuffle> for Group {
    fn to_wire(&self) -> proto::Assigned {
        let is_plain = self.copies == [self.id.server];
        let copies = if is_plain { &[][..] } else { &self.copies };
        proto::Assigned {
            id: Shuffle::to_wire(&self.id),
            partitions: Shuffle::to_wire(&self.partitions),
            copies: copies.iter().map(Shuffle::to_wire).collect(),
            filling: Shuffle::to_wire(&self.filling),
            is_closed: !self.is_open,
            is_split: self.is_split,
            uploaded: Shuffle::to_wire(&self.uploaded),
        }
    }

    fn of_wire(wire: proto::Assigned, detacher: Detacher) -> Result<Self, WireError> {
        let id: GroupId = Shuffle::field("id", wire.id, detacher)?;
        let partitions = Shuffle::field("partitions", wire.partitions, detacher)?;
        let mut copies: Vec<ServerId> = Shuffle::field("copies", wire.copies, detacher)?;
        if copies.is_empty() {
            copies.push(id.server);
        }
        let filling: Option<ServerId> = Wire::<_, Shuffle>::of_wire(wire.filling, detacher)?;
        let uploaded: Option<Uploaded> = Wire::<_, Shuffle>::of_wire(wire.uploaded, detacher)?;
        Ok(Self {
            id,
            partitions,
            copies,
            filling,
            uploaded,
            is_open: !wire.is_closed,
            is_split: wire.is_split,
        })
    }
}

fn filled_of_wire(wire: proto::Filled, detacher: Detacher) -> Result<ToMaster, WireError> {
    let shuffle = ShuffleId(wire.shuffle);
    let group = Shuffle::field("group", wire.group, detacher)?;
    let source = Shuffle::field("source", wire.source, detacher)?;
    let uploaded: Option<Uploaded> = Wire::<_, Shuffle>::of_wire(wire.uploaded, detacher)?;
    Ok(match uploaded {
        Some(uploaded) => ToMaster::Uploaded {
            shuffle,
            group,
            uploaded,
        },
        None => ToMaster::Filled {
            shuffle,
            group,
            source,
            is_sealed: wire.is_sealed,
        },
    })
}

fn commit_to_wire(ask: u64, commit: &Commit) -> proto::Commit {
    let groups = commit.groups.iter();
    let groups = groups.map(|(group, chosen)| proto::CommittedGroup {
        group: Shuffle::to_wire(group),
        positions: Shuffle::to_wire(&chosen.positions),
        tally: Shuffle::to_wire(&chosen.tally),
    });
    proto::Commit {
        keeps: commit.keeps,
        ask,
        shuffle: commit.shuffle.0,
        groups: groups.collect(),
        winners: Shuffle::to_wire(&*commit.winners),
    }
}

fn commit_of_wire(wire: proto::Commit, detacher: Detacher) -> Result<Commit, WireError> {
    at_most("groups", wire.groups.len() as u64, MOST)?;
    let winners: Vec<(u32, AttemptId)> = Shuffle::field("winners", wire.winners, detacher)?;
    ascending("winners", &winners, |&winner| winner)?;
    let groups = wire.groups.into_iter();
    let group = |wire: proto::CommittedGroup| -> Result<(GroupId, Chosen), WireError> {
        let group = Shuffle::field("group", wire.group, detacher)?;
        let positions = Shuffle::field("positions", wire.positions, detacher)?;
        let tally = Shuffle::field("tally", wire.tally, detacher)?;
        Ok((group, Chosen { positions, tally }))
    };
    let groups = groups.map(group).collect::<Result<Vec<_>, _>>()?;
    ascending("groups", &groups, |&(group, _)| group)?;
    let sets = groups.iter().map(|(_, chosen)| &chosen.positions);
    at_most(
        "positions",
        sets.clone().map(MapSet::len).sum(),
        MOST_POSITIONS,
    )?;
    let is_plain = winners.is_sorted_by(|one, other| one.0 < other.0);
    for set in sets {
        choose(set, &winners, is_plain)?;
    }
    Ok(Commit {
        keeps: wire.keeps,
        shuffle: ShuffleId(wire.shuffle),
        groups: groups.into_iter().collect(),
        winners: winners.into(),
    })
}

/// Checks that positions are of winners, of which no two are of one map. `is_plain`: none are.
fn choose(
    positions: &MapSet,
    winners: &[(u32, AttemptId)],
    is_plain: bool,
) -> Result<(), WireError> {
    let wrong = |value: u32| WireError::Range {
        column: "positions",
        value: value.into(),
    };
    if let Some(last) = positions.last()
        && last as usize >= winners.len()
    {
        return Err(wrong(last));
    }
    let mut before = None;
    for position in positions.iter().filter(|_| !is_plain) {
        let map = Some(winners[position as usize].0);
        if before == map {
            return Err(wrong(position));
        }
        before = map;
    }
    Ok(())
}

/// As runs, or as bits if that is shorter.
impl Wire<Option<proto::MapSet>, Shuffle> for MapSet {
    fn to_wire(&self) -> Option<proto::MapSet> {
        let runs = self.ranges().map(Shuffle::to_wire);
        let bits = self.bits().iter().flat_map(|word| word.to_le_bytes());
        let mut bits: Vec<u8> = bits.collect();
        bits.truncate(self.last().map_or(0, |last| last as usize / 8 + 1));
        Some(proto::MapSet {
            runs: runs.unwrap_or_default(),
            bits: bits.into(),
        })
    }

    fn of_wire(wire: Option<proto::MapSet>, detacher: Detacher) -> Result<Self, WireError> {
        let wire = wire.ok_or(WireError::Missing("set"))?;
        at_most("bits", 8 * wire.bits.len() as u64, MOST)?;
        if wire.bits.is_empty() {
            return Wire::<_, Shuffle>::of_wire(wire.runs, detacher).map(|runs: Runs| runs.into());
        }
        if let Some(&value) = wire.runs.first() {
            return Err(WireError::Range {
                column: "runs",
                value,
            });
        }
        let words = wire.bits.chunks(8).map(|bytes| {
            let mut word = [0; 8];
            word[..bytes.len()].copy_from_slice(bytes);
            u64::from_le_bytes(word)
        });
        Ok(MapSet::from_bits(words.collect()))
    }
}

/// In ascending order of the maps.
impl Wire<Option<proto::Winners>, Shuffle> for Winners {
    fn to_wire(&self) -> Option<proto::Winners> {
        Shuffle::to_wire(&self.iter().collect::<Vec<_>>())
    }

    fn of_wire(wire: Option<proto::Winners>, detacher: Detacher) -> Result<Self, WireError> {
        let winners: Vec<(u32, AttemptId)> = Wire::<_, Shuffle>::of_wire(wire, detacher)?;
        ascending("winners", &winners, |&(map, _)| map)?;
        Ok(winners.into_iter().collect())
    }
}

/// Checks that a list has no two entries of the same name, and is sorted by them.
fn ascending<T, K: Ord>(
    column: &'static str,
    list: &[T],
    name: impl Fn(&T) -> K,
) -> Result<(), WireError> {
    let wrong = list
        .windows(2)
        .position(|two| name(&two[0]) >= name(&two[1]));
    match wrong {
        Some(index) => Err(WireError::Range {
            column,
            value: index as u64 + 1,
        }),
        None => Ok(()),
    }
}

/// Checks that a plan is one: all partitions exist, and groups that share one share all. Of those one at
/// most is open.
fn fits(plan: Plan) -> Result<Plan, WireError> {
    at_most("partitions", plan.partitions.into(), MOST)?;
    ascending("groups", &plan.groups, |group| group.id)?;
    let all = Runs::range(0, plan.partitions.into());
    let mut assigned: Vec<(u64, u64)> = Vec::new();
    // Groups with the same partitions, and whether one of them is open.
    let mut chains = BTreeMap::new();
    for group in &plan.groups {
        let (epoch, partitions) = (group.id.epoch, &group.partitions);
        if epoch > plan.generation {
            return Err(WireError::Range {
                column: "epoch",
                value: epoch.0.into(),
            });
        }
        if partitions.is_empty() || !partitions.is_subset(&all) {
            return Err(WireError::Range {
                column: "partitions",
                value: partitions.ranges().last().map_or(0, |&(_, end)| end),
            });
        }
        let chain = chains.entry(partitions.ranges());
        let is_first = matches!(chain, Entry::Vacant(_));
        let has_open = chain.or_insert(false);
        if !is_first && *has_open && group.is_open {
            return Err(WireError::Range {
                column: "partitions",
                value: partitions.first().unwrap_or_default(),
            });
        }
        *has_open |= group.is_open;
        if is_first {
            assigned.extend(partitions.ranges());
        }
    }
    assigned.sort_unstable();
    match assigned.windows(2).find(|two| two[0].1 > two[1].0) {
        Some(two) => Err(WireError::Range {
            column: "partitions",
            value: two[1].0,
        }),
        None => Ok(plan),
    }
}

wire_columns! { Shuffle:
    GroupColumns: GroupId => proto::Groups { epochs, nodes, incarnations };
    ShareColumns: Share => proto::Shares {
        epochs, nodes, incarnations, tasks, attempts, rows, bytes, digests,
    };
    WinnerColumns: (u32, AttemptId) => proto::Winners { maps, tasks, attempts };
    PieceColumns: ReadPiece => proto::Pieces { maps, tasks, attempts, numbers, rows, bytes, digests, packed };
}

columns_of_struct! {
    ServerColumns: ServerId { node: Delta<u32>, incarnation: Delta<u32> }
}

columns_of_struct! {
    GroupColumns: GroupId { epoch: GenerationColumns, server: ServerColumns }
}

columns_of_struct! {
    TallyColumns: Tally { rows: Varint<u64>, bytes: Varint<u64>, digest: Varint<u64> }
}

columns_of_struct! {
    ShareColumns: Share { group: GroupColumns, holder: AttemptColumns, tally: TallyColumns }
}

columns_of_struct! {
    BatchColumns: BatchId { map: Delta<u32>, attempt: AttemptColumns, number: Delta<u32> }
}

columns_of_struct! {
    PieceColumns: ReadPiece {
        batch: BatchColumns, rows: Varint<u64>, bytes: Varint<u64>, digest: Varint<u32>,
        packed: Sparse<u32>,
    }
}

columns_of_newtype! {
    GenerationColumns: Generation(Delta<u32>);
    /// An attempt is an object's number.
    AttemptColumns: AttemptId(ObjectNumber);
}

/// A map, and the attempt that counts.
struct WinnerColumns;

impl Codec for WinnerColumns {
    type Value = (u32, AttemptId);
    type Columns = (Column, <AttemptColumns as Codec>::Columns);
    type Rows = (<Delta<u32> as Codec>::Rows, <AttemptColumns as Codec>::Rows);

    fn put((maps, attempts): &mut Self::Columns, (map, attempt): &Self::Value) {
        Delta::put(maps, map);
        AttemptColumns::put(attempts, attempt);
    }

    #[inline(always)]
    fn get((maps, attempts): &mut Self::Rows) -> Result<Self::Value, WireError> {
        Ok((Delta::get(maps)?, AttemptColumns::get(attempts)?))
    }

    fn cost((map, attempt): &Self::Value) -> usize {
        Delta::cost(map) + AttemptColumns::cost(attempt)
    }
}
