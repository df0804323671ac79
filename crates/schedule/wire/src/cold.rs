//! Messages that are rare, and the first words of a node: what their parts are in the schema.

use std::cmp::Ordering;

use bytes::Bytes;
use prost::Message as _;
use treadle_broadcast::Settled;
use treadle_broadcast_wire::Broadcast;
use treadle_codec::{
    Cells, Detacher, MOST, Pieces, Schema, Wire, WireError, at_most, get_all, put_all, wire_enum,
    wire_foreign, wire_ids, wire_list, wire_required, wire_struct, wire_words, wire_wrapped,
};
use treadle_messages::{
    Answer, Batch, Call, Definition, Failed, FailedKind, Hello, Leave, LostWorker, Member,
    Registration, Role, TaskOptions, Welcome,
};
use treadle_scheduler::Stuck;
use treadle_shuffle::{ToMaster, ToNode};
use treadle_shuffle_wire::Shuffle;
use treadle_types::{Cause, ClientId, WorkerId};

use super::{PROTOCOL, proto};

/// The schema `proto/cluster.proto`.
#[derive(Debug)]
pub enum Cluster {}

impl Schema for Cluster {}

wire_ids! { Cluster:
    WorkerId => u32;
    ClientId => u32;
}

wire_foreign! { Cluster:
    Settled => Vec<u64>, of Broadcast;
    ToNode => treadle_shuffle_wire::proto::ToNode, of Shuffle;
    ToMaster => treadle_shuffle_wire::proto::ToMaster, of Shuffle;
}

wire_struct! { Cluster:
    Definition => proto::Definition { client, number, name, pickle };
    Call => proto::Call { id, node, operation, argument };
    Member => proto::Member { worker, name, address, host };
    LostWorker => proto::LostWorker { name, address, cause, log };
    Failed => proto::Failed { key, kind };
    TaskOptions => proto::TaskOptions {
        priority, retries, workers, allow_other, resources, actor, effects, lasting,
    };
    Batch => proto::Batch {
        number, last, first, keys, tasks, offsets, inputs, readers, ranks, definition_offsets,
        definitions, recipes, options, option_sets, wanted,
    } check whole;
    Registration => proto::Registration {
        submission, name, barrier, maps, partitions, outputs, aligned, spec, readers, reads, kind,
        service,
    } check paired;
    Hello => proto::Hello { name, python, version, info, role };
}

/// Checks that the columns of a batch fit together.
fn whole(mut batch: Batch) -> Result<Batch, WireError> {
    let count = batch.tasks.len();
    // A column of zeros is left out.
    if batch.options.is_empty() {
        batch.options = vec![0; count];
    }
    for (column, length, expected) in [
        ("offsets", batch.offsets.len(), count + 1),
        (
            "definition_offsets",
            batch.definition_offsets.len(),
            count + 1,
        ),
        ("ranks", batch.ranks.len(), count),
        ("recipes", batch.recipes.len(), count),
        ("readers", batch.readers.len(), count),
        ("options", batch.options.len(), count),
    ] {
        if length < expected {
            return Err(WireError::Short { column });
        }
        if length > expected {
            return Err(WireError::Surplus { column });
        }
    }
    for (column, offsets, entries) in [
        ("offsets", &batch.offsets, batch.inputs.len()),
        (
            "definition_offsets",
            &batch.definition_offsets,
            batch.definitions.len(),
        ),
    ] {
        let ends = (offsets[0] as usize, offsets[count] as usize);
        if ends != (0, entries) || !offsets.is_sorted() {
            let value = offsets[count].into();
            return Err(WireError::Range { column, value });
        }
    }
    Ok(batch)
}

/// Checks that a registration says of each reader what it reads.
fn paired(registration: Registration) -> Result<Registration, WireError> {
    at_most("partitions", registration.partitions.into(), MOST)?;
    let (readers, reads) = (registration.readers.len(), registration.reads.len());
    match reads.cmp(&readers) {
        Ordering::Less => Err(WireError::Short { column: "reads" }),
        Ordering::Greater => Err(WireError::Surplus { column: "reads" }),
        Ordering::Equal => Ok(registration),
    }
}

wire_enum! { Cluster:
    FailedKind => proto::failed::Kind {
        values { Raised, WorkersLost, DataLost, ActorLost, Unavailable }
    }
}

wire_enum! { Cluster:
    Role => proto::hello::Role {
        units { Client, Sidecar }
        structs { Worker: proto::WorkerRole { address, host, threads, memory, resources } }
    }
}

wire_enum! { Cluster:
    Welcome => proto::welcome::Outcome {
        values { Refused }
        structs { Accepted: proto::Accepted { id, info } }
    }
}

wire_required! { Cluster:
    FailedKind => proto::failed::Kind, "failure";
    Role => proto::hello::Role, "role";
}

wire_words! { Cluster:
    Leave => proto::leave::Cause { Drained, Asked, Over, Dismissed }, "cause"
}

wire_words! { Cluster:
    Stuck => proto::stuck::Reason { NoWorkers, Restrictions, Resources, Memory, Silence, Slots },
    "reason"
}

wire_list! { Cluster:
    LostWorker => proto::LostWorkers { workers };
    Member => proto::Members { members };
}

impl Wire<proto::Answer, Cluster> for Answer {
    fn to_wire(&self) -> proto::Answer {
        use proto::answer::Result as Outcome;
        let result = match &self.result {
            Ok(value) => Outcome::Value(value.clone()),
            Err(error) => Outcome::Error(error.clone()),
        };
        proto::Answer {
            id: self.id,
            result: Some(result),
        }
    }

    fn of_wire(wire: proto::Answer, detacher: Detacher) -> Result<Self, WireError> {
        use proto::answer::Result as Outcome;
        Ok(Self {
            id: wire.id,
            result: match wire.result.ok_or(WireError::Missing("answer"))? {
                Outcome::Value(value) => Ok(detacher.detach_field(value)),
                Outcome::Error(error) => Err(detacher.detach_field(error)),
            },
        })
    }
}

/// The lengths of pieces, and the pieces.
fn put_pieces(pieces: &[Bytes]) -> (Bytes, Bytes) {
    let lengths = put_all(pieces, |lengths, piece| lengths.put(piece.len() as u64));
    (
        lengths,
        put_all(pieces, |column, piece| column.put_bytes(piece)),
    )
}

fn get_pieces(lengths: Bytes, mut pieces: impl Pieces) -> Result<Vec<Bytes>, WireError> {
    let found = get_all(lengths, |lengths| {
        let length = lengths.get()?;
        pieces.piece(length)
    })?;
    pieces.end()?;
    Ok(found)
}

/// Views of the packet.
impl Wire<Option<proto::Keys>, Cluster> for Vec<Bytes> {
    fn to_wire(&self) -> Option<proto::Keys> {
        let (lengths, keys) = put_pieces(self);
        Some(proto::Keys { lengths, keys })
    }

    fn of_wire(wire: Option<proto::Keys>, _: Detacher) -> Result<Self, WireError> {
        let wire = wire.unwrap_or_default();
        get_pieces(wire.lengths, Cells::new("", wire.keys))
    }
}

/// They may stay for long.
impl Wire<Option<proto::Pieces>, Cluster> for Vec<Bytes> {
    fn to_wire(&self) -> Option<proto::Pieces> {
        let (lengths, pieces) = put_pieces(self);
        Some(proto::Pieces { lengths, pieces })
    }

    fn of_wire(wire: Option<proto::Pieces>, detacher: Detacher) -> Result<Self, WireError> {
        let wire = wire.unwrap_or_default();
        get_pieces(wire.lengths, detacher.column(Cells::new("", wire.pieces)))
    }
}

impl Wire<proto::Resource, Cluster> for (String, f64) {
    fn to_wire(&self) -> proto::Resource {
        proto::Resource {
            name: self.0.clone(),
            amount: self.1,
        }
    }

    fn of_wire(wire: proto::Resource, _: Detacher) -> Result<Self, WireError> {
        Ok((wire.name, wire.amount))
    }
}

wire_enum! { Cluster:
    Cause => proto::cause::Cause {
        units { OutOfMemory, MemoryLimit, Unreachable, Drained }
        values { Signal, Exited, Misbehaved }
    }
}

wire_wrapped! { Cluster:
    Cause => proto::Cause { cause };
}

wire_required! { Cluster:
    Cause => proto::Cause, "cause";
}

/// The contents of an object of kind [`HELLO`](super::HELLO).
pub fn encode_hello(hello: &Hello) -> Vec<u8> {
    encode_hello_of(PROTOCOL, hello)
}

/// As [`encode_hello`], of a node that speaks another protocol; for tests.
#[doc(hidden)]
pub fn encode_hello_of(protocol: u32, hello: &Hello) -> Vec<u8> {
    let mut wire: proto::Hello = Cluster::to_wire(hello);
    wire.protocol = protocol;
    wire.encode_to_vec()
}

/// The inverse of [`encode_hello`].
///
/// # Errors
/// For other bytes, and for a node that speaks another protocol.
pub fn decode_hello(bytes: &[u8]) -> Result<Hello, WireError> {
    let hello = proto::Hello::decode(bytes)?;
    if hello.protocol != PROTOCOL {
        return Err(WireError::Protocol {
            theirs: hello.protocol,
            ours: PROTOCOL,
        });
    }
    Wire::<_, Cluster>::of_wire(hello, Detacher::new(bytes.len()))
}

/// The contents of an object of kind [`WELCOME`](super::WELCOME).
pub fn encode_welcome(welcome: &Welcome) -> Vec<u8> {
    let outcome = Some(Cluster::to_wire(welcome));
    proto::Welcome { outcome }.encode_to_vec()
}

/// The inverse of [`encode_welcome`].
///
/// # Errors
/// For other bytes.
pub fn decode_welcome(bytes: &[u8]) -> Result<Welcome, WireError> {
    let welcome = proto::Welcome::decode(bytes)?;
    let outcome = welcome.outcome.ok_or(WireError::Missing("outcome"))?;
    Wire::<_, Cluster>::of_wire(outcome, Detacher::new(bytes.len()))
}
