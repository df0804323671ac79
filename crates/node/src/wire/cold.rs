//! Messages that are rare, each by itself.

use bytes::Bytes;
use treadle_broadcast::{Runs, Settled};
use treadle_scheduler::Stuck;
use treadle_types::{Cause, ClientId, Report, WorkerId};

use super::WireError;
use super::batch::{get_blobs, get_deltas, put_blobs};
use super::keep::Keeper;
use super::relayed::{get_engines, get_runs, put_runs};
use crate::message::{
    Answer, Call, Definition, Failed, FailedKind, FromClient, FromWorker, LostWorker, Member,
    Standing, ToClient,
};
use crate::wire::proto::{self, section::Section};

pub(super) fn put_definition(definition: &Definition) -> Section {
    Section::Define(proto::Definition {
        client: definition.client.0,
        number: definition.number,
        name: definition.name.clone(),
        pickle: definition.pickle.clone(),
    })
}

pub(super) fn get_definition(section: proto::Definition, keeper: Keeper) -> Definition {
    Definition {
        client: ClientId(section.client),
        number: section.number,
        name: section.name,
        pickle: keeper.keep_field(section.pickle),
    }
}

pub(super) fn put_call(call: &Call) -> Section {
    Section::Call(proto::Call {
        id: call.id,
        node: call.node.clone(),
        operation: call.operation.clone(),
        argument: call.argument.clone(),
    })
}

pub(super) fn get_call(section: proto::Call, keeper: Keeper) -> Call {
    Call {
        id: section.id,
        node: section.node,
        operation: section.operation,
        argument: keeper.keep_field(section.argument),
    }
}

pub(super) fn put_answer(answer: &Answer) -> Section {
    use proto::answer::Result as Outcome;
    Section::Answer(proto::Answer {
        id: answer.id,
        result: Some(match &answer.result {
            Ok(value) => Outcome::Value(value.clone()),
            Err(error) => Outcome::Error(error.clone()),
        }),
    })
}

pub(super) fn get_answer(section: proto::Answer, keeper: Keeper) -> Result<Answer, WireError> {
    use proto::answer::Result as Outcome;
    Ok(Answer {
        id: section.id,
        result: match section.result.ok_or(WireError::Missing("answer"))? {
            Outcome::Value(value) => Ok(keeper.keep_field(value)),
            Outcome::Error(error) => Err(keeper.keep_field(error)),
        },
    })
}

pub(super) fn put_peer(worker: WorkerId, address: &str) -> Section {
    Section::Peer(proto::Address {
        worker: worker.0,
        address: address.to_owned(),
    })
}

pub(super) fn put_peer_lost(worker: WorkerId) -> Section {
    Section::PeerLost(proto::Worker { worker: worker.0 })
}

/// An upper bound of the length of one of `members`.
pub(super) fn member_cost(member: &Member) -> usize {
    cost(&[member.name.len(), member.address.len(), member.host.len()])
}

pub(super) fn put_joined(members: &[Member]) -> Section {
    let member = |member: &Member| proto::Member {
        worker: member.worker.0,
        name: member.name.clone(),
        address: member.address.clone(),
        host: member.host.clone(),
    };
    Section::Joined(proto::Members {
        members: members.iter().map(member).collect(),
    })
}

pub(super) fn get_joined(section: proto::Members) -> ToClient {
    let member = |member: proto::Member| Member {
        worker: WorkerId(member.worker),
        name: member.name,
        address: member.address,
        host: member.host,
    };
    ToClient::Joined(section.members.into_iter().map(member).collect())
}

pub(super) fn put_health(report: &Report) -> Section {
    let Report::Health {
        managed,
        process,
        spilled,
        paused,
    } = *report
    else {
        unreachable!("the others are columns");
    };
    Section::Health(proto::Health {
        managed,
        process,
        spilled,
        paused,
    })
}

pub(super) fn get_health(section: &proto::Health) -> Report {
    Report::Health {
        managed: section.managed,
        process: section.process,
        spilled: section.spilled,
        paused: section.paused,
    }
}

fn put_cause(cause: &Cause) -> proto::Cause {
    use proto::cause::Cause as Kind;
    let cause = match cause {
        Cause::OutOfMemory => Kind::OutOfMemory(proto::Nothing {}),
        Cause::MemoryLimit => Kind::MemoryLimit(proto::Nothing {}),
        Cause::Signal(signal) => Kind::Signal(*signal),
        Cause::Exited(code) => Kind::Exited(*code),
        Cause::Unreachable => Kind::Unreachable(proto::Nothing {}),
        Cause::Drained => Kind::Drained(proto::Nothing {}),
        Cause::Misbehaved(reason) => Kind::Misbehaved(reason.clone()),
    };
    proto::Cause { cause: Some(cause) }
}

fn get_cause(cause: Option<proto::Cause>) -> Result<Cause, WireError> {
    use proto::cause::Cause as Kind;
    let cause = cause.and_then(|cause| cause.cause);
    Ok(match cause.ok_or(WireError::Missing("cause"))? {
        Kind::OutOfMemory(_) => Cause::OutOfMemory,
        Kind::MemoryLimit(_) => Cause::MemoryLimit,
        Kind::Signal(signal) => Cause::Signal(signal),
        Kind::Exited(code) => Cause::Exited(code),
        Kind::Unreachable(_) => Cause::Unreachable,
        Kind::Drained(_) => Cause::Drained,
        Kind::Misbehaved(reason) => Cause::Misbehaved(reason),
    })
}

/// As [`cost`], of a cause.
pub(super) fn cause_cost(cause: &Cause) -> usize {
    match cause {
        Cause::Misbehaved(reason) => cost(&[reason.len()]),
        _ => cost(&[]),
    }
}

pub(super) fn put_left(worker: WorkerId, cause: &Cause) -> Section {
    Section::Left(proto::Left {
        worker: worker.0,
        cause: Some(put_cause(cause)),
    })
}

pub(super) fn get_left(section: proto::Left) -> Result<ToClient, WireError> {
    Ok(ToClient::Left {
        worker: WorkerId(section.worker),
        cause: get_cause(section.cause)?,
    })
}

/// As [`cost`], of what is settled.
pub(super) fn settled_cost(settled: &Settled) -> usize {
    cost(&[20 * settled.0.ranges().len()])
}

pub(super) fn put_settled(node: u32, settled: &Settled) -> proto::SettledAt {
    proto::SettledAt {
        node,
        settled: put_runs(&settled.0),
    }
}

pub(super) fn get_settled(section: &proto::SettledAt) -> Result<Settled, WireError> {
    get_runs(&section.settled).map(Settled)
}

pub(super) fn put_goodbye(cause: &Cause, log: &str) -> Section {
    Section::Goodbye(proto::Goodbye {
        cause: Some(put_cause(cause)),
        log: log.to_owned(),
    })
}

pub(super) fn get_goodbye(section: proto::Goodbye) -> Result<FromWorker, WireError> {
    Ok(FromWorker::Goodbye {
        cause: get_cause(section.cause)?,
        log: section.log,
    })
}

fn put_lost(worker: &LostWorker) -> proto::LostWorker {
    proto::LostWorker {
        name: worker.name.clone(),
        address: worker.address.clone(),
        cause: Some(put_cause(&worker.cause)),
        log: worker.log.clone(),
    }
}

fn get_lost(worker: proto::LostWorker) -> Result<LostWorker, WireError> {
    Ok(LostWorker {
        name: worker.name,
        address: worker.address,
        cause: get_cause(worker.cause)?,
        log: worker.log,
    })
}

pub(super) fn put_failed(id: u32, failed: &Failed) -> Section {
    use proto::failed::Kind;
    let kind = match &failed.kind {
        FailedKind::Raised(error) => Kind::Raised(error.clone()),
        FailedKind::WorkersLost(workers) => Kind::WorkersLost(proto::LostWorkers {
            workers: workers.iter().map(put_lost).collect(),
        }),
        FailedKind::DataLost(worker) => Kind::DataLost(put_lost(worker)),
        FailedKind::ActorLost(worker) => Kind::ActorLost(put_lost(worker)),
        FailedKind::Unavailable(input) => Kind::Unavailable(input.clone()),
    };
    Section::Failed(proto::Failed {
        id,
        key: failed.key.clone(),
        kind: Some(kind),
    })
}

pub(super) fn get_failed(section: proto::Failed, keeper: Keeper) -> Result<ToClient, WireError> {
    use proto::failed::Kind;
    let kind = match section.kind.ok_or(WireError::Missing("failure"))? {
        Kind::Raised(error) => FailedKind::Raised(keeper.keep_field(error)),
        Kind::WorkersLost(lost) => {
            let workers: Result<_, _> = lost.workers.into_iter().map(get_lost).collect();
            FailedKind::WorkersLost(workers?)
        }
        Kind::DataLost(worker) => FailedKind::DataLost(get_lost(worker)?),
        Kind::ActorLost(worker) => FailedKind::ActorLost(get_lost(worker)?),
        Kind::Unavailable(input) => FailedKind::Unavailable(keeper.keep_field(input)),
    };
    Ok(ToClient::Notice {
        id: section.id,
        standing: Standing::Failed(Failed {
            key: keeper.keep_field(section.key),
            kind,
        }),
    })
}

pub(super) fn put_cancelled(id: u32, reason: &Bytes) -> Section {
    Section::Cancelled(proto::Cancelled {
        id,
        reason: reason.clone(),
    })
}

pub(super) fn get_cancelled(section: proto::Cancelled, keeper: Keeper) -> ToClient {
    ToClient::Notice {
        id: section.id,
        standing: Standing::Cancelled(keeper.keep_field(section.reason)),
    }
}

pub(super) fn put_place(id: u32, object: u64, workers: &Runs) -> Section {
    Section::Place(proto::Place {
        id,
        object,
        workers: put_runs(workers),
    })
}

pub(super) fn get_place(section: proto::Place) -> Result<ToClient, WireError> {
    Ok(ToClient::Place {
        id: section.id,
        object: section.object,
        workers: get_engines(&section.workers)?,
    })
}

pub(super) fn put_stuck(keys: &[Bytes], reason: Stuck) -> Section {
    use proto::stuck::Reason;
    let (lengths, keys) = put_blobs(keys);
    let reason = match reason {
        Stuck::NoWorkers => Reason::NoWorkers,
        Stuck::Restrictions => Reason::Restrictions,
        Stuck::Resources => Reason::Resources,
        Stuck::Memory => Reason::Memory,
        Stuck::Silence => Reason::Silence,
        Stuck::Slots => Reason::Slots,
    };
    Section::Stuck(proto::Stuck {
        reason: reason.into(),
        lengths,
        keys,
    })
}

pub(super) fn get_stuck(section: proto::Stuck, keeper: Keeper) -> Result<ToClient, WireError> {
    use proto::stuck::Reason;
    let reason = Reason::try_from(section.reason).map_err(|_| WireError::Missing("reason"))?;
    Ok(ToClient::Stuck {
        keys: get_blobs("keys", section.lengths, section.keys, Some(keeper))?,
        reason: match reason {
            Reason::NoWorkers => Stuck::NoWorkers,
            Reason::Restrictions => Stuck::Restrictions,
            Reason::Resources => Stuck::Resources,
            Reason::Memory => Stuck::Memory,
            Reason::Silence => Stuck::Silence,
            Reason::Slots => Stuck::Slots,
        },
    })
}

pub(super) fn put_want(first: u32, keys: &[Bytes]) -> Section {
    let (lengths, keys) = put_blobs(keys);
    Section::Want(proto::Keys {
        first,
        lengths,
        keys,
    })
}

pub(super) fn get_want(section: proto::Keys) -> Result<FromClient, WireError> {
    Ok(FromClient::Want {
        first: section.first,
        keys: get_blobs("keys", section.lengths, section.keys, None)?,
    })
}

pub(super) fn put_put(message: &FromClient) -> Section {
    let FromClient::Put {
        id,
        key,
        nbytes,
        inline,
        class,
        workers,
        copies,
        kept,
    } = message
    else {
        unreachable!("another message");
    };
    Section::Put(proto::Put {
        id: *id,
        key: key.clone(),
        nbytes: *nbytes,
        inline: inline.clone(),
        class: class.clone(),
        workers: workers.clone(),
        copies: *copies,
        kept: *kept,
    })
}

pub(super) fn get_put(section: proto::Put, keeper: Keeper) -> FromClient {
    FromClient::Put {
        id: section.id,
        key: keeper.keep_field(section.key),
        nbytes: section.nbytes,
        inline: section.inline.map(|value| keeper.keep_field(value)),
        class: keeper.keep_field(section.class),
        workers: section.workers,
        copies: section.copies,
        kept: section.kept,
    }
}

pub(super) fn get_cancel(
    section: proto::CancelTasks,
    keeper: Keeper,
) -> Result<FromClient, WireError> {
    Ok(FromClient::Cancel {
        ids: get_deltas("ids", section.ids)?,
        force: section.force,
        reason: keeper.keep_field(section.reason),
    })
}

/// An upper bound of what a message of these parts takes, in bytes.
pub(super) fn cost(parts: &[usize]) -> usize {
    64 + parts.iter().map(|part| part + 8).sum::<usize>()
}

/// As [`cost`], of a definition.
pub(super) fn definition_cost(definition: &Definition) -> usize {
    cost(&[definition.name.len(), definition.pickle.len()])
}

/// As [`cost`], of a call.
pub(super) fn call_cost(call: &Call) -> usize {
    cost(&[call.node.len(), call.operation.len(), call.argument.len()])
}

/// As [`cost`], of an answer.
pub(super) fn answer_cost(answer: &Answer) -> usize {
    match &answer.result {
        Ok(bytes) | Err(bytes) => cost(&[bytes.len()]),
    }
}

/// As [`cost`], of a failure.
pub(super) fn failed_cost(failed: &Failed) -> usize {
    let lost = |worker: &LostWorker| {
        let reason = match &worker.cause {
            Cause::Misbehaved(reason) => reason.len(),
            _ => 0,
        };
        cost(&[
            worker.name.len(),
            worker.address.len(),
            worker.log.len(),
            reason,
        ])
    };
    let kind = match &failed.kind {
        FailedKind::Raised(bytes) | FailedKind::Unavailable(bytes) => bytes.len(),
        FailedKind::WorkersLost(workers) => workers.iter().map(lost).sum(),
        FailedKind::DataLost(worker) | FailedKind::ActorLost(worker) => lost(worker),
    };
    cost(&[failed.key.len(), kind])
}

/// As [`cost`], of a worker's last word.
pub(super) fn goodbye_cost(cause: &Cause, log: &str) -> usize {
    match cause {
        Cause::Misbehaved(reason) => cost(&[reason.len(), log.len()]),
        _ => cost(&[log.len()]),
    }
}

/// The message of a section that says no more than its kind, for errors.
pub(super) fn name(section: &Section) -> &'static str {
    match section {
        Section::Commands(_) => "commands",
        Section::Reports(_) => "reports",
        Section::Notices(_) => "notices",
        Section::Releases(_) => "releases",
        Section::Batch(_) => "batch",
        Section::Put(_) => "put",
        Section::Want(_) => "want",
        Section::Cancel(_) => "cancel",
        Section::Retry(_) => "retry",
        Section::Bring(_) => "bring",
        Section::Unkeep(_) => "unkeep",
        Section::Unkept(_) => "unkept",
        Section::Unused(_) => "unused",
        Section::GiveUp(_) => "give_up",
        Section::Withdraw(_) => "withdraw",
        Section::Define(_) => "define",
        Section::Undefine(_) => "undefine",
        Section::Peer(_) => "peer",
        Section::PeerLost(_) => "peer_lost",
        Section::Call(_) => "call",
        Section::Answer(_) => "answer",
        Section::Leave(_) => "leave",
        Section::Health(_) => "health",
        Section::Drain(_) => "drain",
        Section::Goodbye(_) => "goodbye",
        Section::Failed(_) => "failed",
        Section::Cancelled(_) => "cancelled",
        Section::Place(_) => "place",
        Section::Stuck(_) => "stuck",
        Section::Restarted(_) => "restarted",
        Section::Bye(_) => "bye",
        Section::SessionOver(_) => "session_over",
        Section::Members(_) => "members",
        Section::Joined(_) => "joined",
        Section::Left(_) => "left",
        Section::AskSettled(_) => "ask_settled",
        Section::SettledAsked(_) => "settled_asked",
        Section::SettledTold(_) => "settled_told",
        Section::Settled(_) => "settled",
    }
}

pub(super) fn put_undefine(client: ClientId) -> Section {
    Section::Undefine(proto::Client { client: client.0 })
}

pub(super) fn put_leave(reason: &str) -> Section {
    Section::Leave(proto::Leave {
        reason: reason.to_owned(),
    })
}
