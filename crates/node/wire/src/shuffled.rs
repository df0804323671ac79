//! What the parts of the shuffle plane tell each other, and what a transfer returns. Rows are in
//! frames of their own.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::time::Duration;

use prost::Message as _;
use treadle_shuffle::{
    Answer, Ask, AttemptId, BatchId, Chosen, Commit, CommitError, Expected, Fetch, FromServer,
    Generation, Group, GroupId, MapRange, MapSet, Plan, Push, ReadPiece, Receipt, Refusal, Seal,
    ServerId, Share, Tally, Tenant, ToMaster, ToNode, ToServer, Transfer, Usage, Verdict, Winners,
};
use treadle_types::Runs;

use super::WireError;
use super::codec::{Codec, Delta, ObjectNumber, Sparse, Varint, columns_of_struct};
use super::column::{Column, Columns, MOST, Rows, at_most};
use super::keep::Detacher;
use super::schema::{Wire, field, wire_enum, wire_required, wire_struct, wire_wrapped};
use super::shuffle;
use super::shuffle::{
    answer, committed, from_server, refusal, to_master, to_node, to_server, verdict,
};

/// Positions of the winners of all groups of a commit, at most: 6,700 groups with rows of 40,000 maps.
const MOST_POSITIONS: u64 = 1 << 28;
/// The most values of a list in columns. A map may have several pieces of a partition, so there may be more
/// than maps. Each value takes bytes: the length of the message is the limit that counts.
const MOST_LISTED: u64 = 1 << 24;

/// What is a frame, or a value, of its own: [`ToNode`], [`ToMaster`], [`ToServer`], [`FromServer`] or
/// [`Receipt`].
pub trait Shuffled: Wire<Self::Schema> {
    /// The generated type.
    #[doc(hidden)]
    type Schema: prost::Message + Default;
}

/// A message as a frame, or a receipt as a value.
pub fn encode_shuffled<M: Shuffled>(message: &M) -> Vec<u8> {
    message.to_wire().encode_to_vec()
}

/// The inverse of [`encode_shuffled`].
///
/// # Errors
/// For other bytes.
pub fn decode_shuffled<M: Shuffled>(bytes: &[u8]) -> Result<M, WireError> {
    M::of_wire(M::Schema::decode(bytes)?, Detacher::new(bytes.len()))
}

macro_rules! shuffled {
    ($($own:ident),*) => {$(
        impl Shuffled for $own {
            type Schema = shuffle::$own;
        }
    )*};
}

shuffled! { ToNode, ToMaster, ToServer, FromServer, Receipt }

wire_struct! {
    ServerId => shuffle::Server { node, incarnation };
    GroupId => shuffle::Group { epoch, server };
    BatchId => shuffle::Batch { map, attempt, number };
    Transfer => shuffle::Transfer { shuffle, map, attempt };
    Tally => shuffle::Tally { rows, bytes, digest };
    Receipt => shuffle::Receipt { transfer, shares } check |receipt: Receipt| {
        ascending("shares", &receipt.shares, |share| share.group).map(|()| receipt)
    };
    Expected => shuffle::Expected { winners, tally };
    Plan => shuffle::Plan {
        shuffle, generation, opened, is_final, tenant, maps, partitions, groups,
    } check fits;
    Tenant => shuffle::Tenant { application, priority };
    Seal => shuffle::Seal { shuffle, generation, group, round, expected };
    Push => shuffle::Push { shuffle, group, batch, tally, length };
    Ask => shuffle::Ask { group, transfer, tally };
    Fetch => shuffle::Fetch { read, shuffle, generation, group, partition, maps, reader };
    MapRange => shuffle::MapRange { first, end };
    Usage => shuffle::Usage {
        reads, read_bytes, pushed, stored, spilled, loaded, again, failed, gathering, pushing,
        comparing, reading,
    };
}

wire_required! {
    ServerId => shuffle::Server, "server";
    GroupId => shuffle::Group, "group";
    BatchId => shuffle::Batch, "batch";
    Transfer => shuffle::Transfer, "transfer";
    Tally => shuffle::Tally, "tally";
    Tenant => shuffle::Tenant, "tenant";
    Expected => shuffle::Expected, "expected";
    Usage => shuffle::Usage, "usage";
    Verdict => shuffle::Verdict, "verdict";
    Answer => shuffle::Answer, "answer";
    Refusal => shuffle::Refusal, "refusal";
}

wire_wrapped! {
    ToNode => shuffle::ToNode { message };
    ToMaster => shuffle::ToMaster { message };
    ToServer => shuffle::ToServer { message };
    FromServer => shuffle::FromServer { message };
    Verdict => shuffle::Verdict { verdict };
    Answer => shuffle::Answer { answer };
    Refusal => shuffle::Refusal { reason };
}

wire_enum! {
    ToNode => to_node::Message {
        values { Plan, Close, Seal }
        structs { Committed: shuffle::Committed { shuffle, ask, result } }
    }
}

wire_enum! {
    CommitError => committed::Result {
        values { Again, Ended }
        structs { Damaged: shuffle::DamagedRows { shuffle, group, expected, found, missing } }
        from(_detacher) { committed::Result::Generation(_) => return Err(WireError::Missing("error")) }
    }
}

wire_enum! {
    ToMaster => to_master::Message {
        values { Join }
        structs {
            Transferred: shuffle::Transferred { transfer, groups, tally },
            Sealed: shuffle::Sealed { shuffle, group, round, verdict },
            Differs: shuffle::Differs { shuffle, group, map, is_late },
            Damaged: shuffle::Damaged { shuffle, group },
            Poisoned: shuffle::Poisoned { shuffle, group },
            Slow: shuffle::Slow { shuffle, server },
            Full: shuffle::Full { shuffle, group },
            Filled: shuffle::Filled { shuffle, group, source, is_sealed },
            Measured: shuffle::Measured { shuffle, group, partitions, sizes },
            Used: shuffle::Used { shuffle, usage },
        }
        to { Self::Commit { ask, commit } => to_master::Message::Commit(commit_to_wire(*ask, commit)) }
        from(detacher) {
            to_master::Message::Commit(wire) => {
                let ask = wire.ask;
                Self::Commit { ask, commit: commit_of_wire(wire, detacher)? }
            },
        }
    }
}

wire_enum! {
    Verdict => verdict::Verdict {
        units { Complete, Differs }
        structs { Short: shuffle::Short { found, missing } }
    }
}

wire_enum! {
    ToServer => to_server::Message {
        values { Push, Ask, Fetch }
        structs {
            Abandon: shuffle::Abandon { group, transfer },
            Adopt: shuffle::Adopt { shuffle, group, source, expected },
            Cancel: shuffle::Cancel { read },
        }
    }
}

wire_enum! {
    FromServer => from_server::Message {
        structs {
            Acked: shuffle::Acked { shuffle, group, batch },
            Refused: shuffle::Refused { shuffle, group, batch, reason },
            Answer: shuffle::Answered { group, transfer, answer },
            Rows: shuffle::Rows { read, tally, pieces },
            Unread: shuffle::Unread { read, reason },
        }
    }
}

wire_enum! {
    Answer => answer::Answer {
        units { Missing, Differs }
        values { Have, Won, Refused }
    }
}

wire_enum! {
    Refusal => refusal::Reason {
        units { Unknown, Sealed, Unsealed, Busy, Malformed, Damaged }
        values { Stranger, Stale, NoRoom }
        to { Self::Sleep(pause) => refusal::Reason::Sleep(pause.as_micros() as u64) }
        from(_detacher) {
            refusal::Reason::Sleep(micros) => Self::Sleep(Duration::from_micros(micros)),
        }
    }
}

impl Wire<Option<committed::Result>> for Result<Generation, CommitError> {
    fn to_wire(&self) -> Option<committed::Result> {
        Some(match self {
            Ok(generation) => committed::Result::Generation(generation.to_wire()),
            Err(error) => error.to_wire(),
        })
    }

    fn of_wire(wire: Option<committed::Result>, detacher: Detacher) -> Result<Self, WireError> {
        Ok(match wire.ok_or(WireError::Missing("result"))? {
            committed::Result::Generation(generation) => Ok(Generation(generation)),
            error => Err(Wire::of_wire(error, detacher)?),
        })
    }
}

impl Wire<shuffle::Assigned> for Group {
    fn to_wire(&self) -> shuffle::Assigned {
        let is_plain = self.copies == [self.id.server];
        let copies = if is_plain { &[][..] } else { &self.copies };
        shuffle::Assigned {
            id: self.id.to_wire(),
            partitions: self.partitions.to_wire(),
            copies: copies.iter().map(Wire::to_wire).collect(),
            filling: self.filling.map(|server| server.to_wire()),
            is_closed: !self.is_open,
            is_split: self.is_split,
        }
    }

    fn of_wire(wire: shuffle::Assigned, detacher: Detacher) -> Result<Self, WireError> {
        let id: GroupId = field("id", wire.id, detacher)?;
        let partitions = field("partitions", wire.partitions, detacher)?;
        let mut copies: Vec<ServerId> = field("copies", wire.copies, detacher)?;
        if copies.is_empty() {
            copies.push(id.server);
        }
        let filling = wire
            .filling
            .map(|server| ServerId::of_wire(server, detacher));
        Ok(Self {
            id,
            partitions,
            copies,
            filling: filling.transpose()?,
            is_open: !wire.is_closed,
            is_split: wire.is_split,
        })
    }
}

fn commit_to_wire(ask: u64, commit: &Commit) -> shuffle::Commit {
    let groups = commit.groups.iter();
    let groups = groups.map(|(group, chosen)| shuffle::CommittedGroup {
        group: group.to_wire(),
        positions: chosen.positions.to_wire(),
        tally: chosen.tally.to_wire(),
    });
    shuffle::Commit {
        ask,
        shuffle: commit.shuffle.0,
        groups: groups.collect(),
        winners: (*commit.winners).to_wire(),
    }
}

fn commit_of_wire(wire: shuffle::Commit, detacher: Detacher) -> Result<Commit, WireError> {
    at_most("groups", wire.groups.len() as u64, MOST)?;
    let winners: Vec<(u32, AttemptId)> = field("winners", wire.winners, detacher)?;
    ascending("winners", &winners, |&winner| winner)?;
    let groups = wire.groups.into_iter();
    let group = |wire: shuffle::CommittedGroup| -> Result<(GroupId, Chosen), WireError> {
        let group = field("group", wire.group, detacher)?;
        let positions = field("positions", wire.positions, detacher)?;
        let tally = field("tally", wire.tally, detacher)?;
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
        shuffle: treadle_shuffle::ShuffleId(wire.shuffle),
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
impl Wire<Option<shuffle::MapSet>> for MapSet {
    fn to_wire(&self) -> Option<shuffle::MapSet> {
        let runs = self.ranges().map(Wire::to_wire);
        let bits = self.bits().iter().flat_map(|word| word.to_le_bytes());
        let mut bits: Vec<u8> = bits.collect();
        bits.truncate(self.last().map_or(0, |last| last as usize / 8 + 1));
        Some(shuffle::MapSet {
            runs: runs.unwrap_or_default(),
            bits: bits.into(),
        })
    }

    fn of_wire(wire: Option<shuffle::MapSet>, detacher: Detacher) -> Result<Self, WireError> {
        let wire = wire.ok_or(WireError::Missing("set"))?;
        at_most("bits", 8 * wire.bits.len() as u64, MOST)?;
        if wire.bits.is_empty() {
            return Runs::of_wire(wire.runs, detacher).map(MapSet::from);
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
impl Wire<Option<shuffle::Winners>> for Winners {
    fn to_wire(&self) -> Option<shuffle::Winners> {
        self.iter().collect::<Vec<_>>().to_wire()
    }

    fn of_wire(wire: Option<shuffle::Winners>, detacher: Detacher) -> Result<Self, WireError> {
        let winners: Vec<(u32, AttemptId)> = Wire::of_wire(wire, detacher)?;
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

/// Declares lists that are columns, each with its name in the schema.
macro_rules! wire_columns {
    ($($codec:ident: $own:ty => $wire:ident { $($name:ident),* $(,)? };)*) => {$(
        impl Wire<Option<shuffle::$wire>> for Vec<$own> {
            fn to_wire(&self) -> Option<shuffle::$wire> {
                let mut columns = <$codec as Codec>::Columns::default();
                for value in self {
                    $codec::put(&mut columns, value);
                }
                let mut written = Vec::new();
                columns.each(&mut |column| written.push(std::mem::take(column).into_bytes()));
                let mut written = written.into_iter();
                Some(shuffle::$wire {
                    count: self.len() as u32,
                    $($name: written.next().unwrap_or_default()),*
                })
            }

            fn of_wire(wire: Option<shuffle::$wire>, detacher: Detacher) -> Result<Self, WireError> {
                let wire = wire.ok_or(WireError::Missing(stringify!($wire)))?;
                at_most("", wire.count.into(), MOST_LISTED)?;
                let mut columns = [$((stringify!($name), wire.$name)),*].into_iter();
                let mut rows = <$codec as Codec>::Rows::new(&mut columns, detacher);
                // A false count allocates nothing, and ends with the columns.
                let mut values = Vec::new();
                for _ in 0..wire.count {
                    values.push($codec::get(&mut rows)?);
                }
                rows.end()?;
                Ok(values)
            }
        }
    )*};
}

wire_columns! {
    GroupColumns: GroupId => Groups { epochs, nodes, incarnations };
    ShareColumns: Share => Shares {
        epochs, nodes, incarnations, tasks, attempts, rows, bytes, digests,
    };
    WinnerColumns: (u32, AttemptId) => Winners { maps, tasks, attempts };
    PieceColumns: ReadPiece => Pieces { maps, tasks, attempts, numbers, rows, bytes, digests, packed };
}

columns_of_struct! {
    ServerColumns: ServerId { node: Delta<u32>, incarnation: Delta<u32> }
}

columns_of_struct! {
    GroupColumns: GroupId { epoch: Delta<Generation>, server: ServerColumns }
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

/// An attempt is an object's number.
pub(super) struct AttemptColumns;

impl Codec for AttemptColumns {
    type Value = AttemptId;
    type Columns = <ObjectNumber as Codec>::Columns;
    type Rows = <ObjectNumber as Codec>::Rows;

    fn put(columns: &mut Self::Columns, attempt: &AttemptId) {
        ObjectNumber::put(columns, &attempt.0);
    }

    #[inline(always)]
    fn get(rows: &mut Self::Rows) -> Result<AttemptId, WireError> {
        ObjectNumber::get(rows).map(AttemptId)
    }

    fn cost(attempt: &AttemptId) -> usize {
        ObjectNumber::cost(&attempt.0)
    }
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
