//! Which messages go in which direction, and how.

use treadle_types::{ClientId, Command, Report, WorkerId};

use super::batch::{self, get_deltas, put_deltas};
use super::commands::{CommandRows, Commands};
use super::family::{Family, Rows};
use super::keep::Keeper;
use super::notices::{NoticeRows, Notices};
use super::releases::{ReleaseRows, Releases};
use super::reports::{ReportRows, Reports};
use super::{WireError, cold};
use crate::message::{FromClient, FromWorker, Standing, ToClient, ToWorker};
use crate::wire::proto::{self, section::Section};

/// Entries of a list that go into one message: long lists that mean the same in pieces are split.
const LIST: usize = 8192;

/// A message of one direction: [`ToWorker`], [`FromWorker`], [`ToClient`] or [`FromClient`].
pub trait Message: Sized + Clone {
    /// What is said so often that it goes in columns.
    #[doc(hidden)]
    type Columns: Family + std::fmt::Debug;
    #[doc(hidden)]
    type Rows: Rows + std::fmt::Debug;

    /// An upper bound of its length, in bytes.
    #[doc(hidden)]
    fn cost(&self) -> usize;

    /// Appends it to the columns; `false`: it is not one of those.
    #[doc(hidden)]
    fn put(&self, columns: &mut Self::Columns) -> bool;

    /// As a section of its own, where it is not in columns.
    #[doc(hidden)]
    fn section(&self) -> Section;

    /// The inverse of both.
    #[doc(hidden)]
    fn get(section: Section, keeper: Keeper) -> Result<Part<Self>, WireError>;

    /// A row of the columns.
    #[doc(hidden)]
    fn row(row: <Self::Rows as Rows>::Message) -> Self;

    /// Several messages that mean the same, where it is long and that is possible.
    #[doc(hidden)]
    fn split(&self) -> Option<Vec<Self>> {
        None
    }
}

/// What a section holds.
#[doc(hidden)]
#[derive(Debug)]
pub enum Part<M: Message> {
    Rows(M::Rows),
    One(M),
}

fn foreign<M: Message>(section: &Section) -> Result<Part<M>, WireError> {
    Err(WireError::Direction(cold::name(section)))
}

impl Message for ToWorker {
    type Columns = Commands;
    type Rows = CommandRows;

    fn cost(&self) -> usize {
        match self {
            Self::Command(command) => Commands::cost(command),
            Self::Define(definition) => cold::definition_cost(definition),
            Self::Peer { address, .. } => cold::cost(&[address.len()]),
            Self::Undefine(_) | Self::SessionOver(_) | Self::PeerLost(_) => cold::cost(&[]),
            Self::Settled { settled, .. } => cold::settled_cost(settled),
            Self::Withdraw { numbers, .. } => cold::cost(&[5 * numbers.len()]),
            Self::Call(call) => cold::call_cost(call),
            Self::Answer(answer) => cold::answer_cost(answer),
            Self::Leave(reason) => cold::cost(&[reason.len()]),
        }
    }

    fn put(&self, columns: &mut Commands) -> bool {
        if let Self::Command(command) = self {
            columns.push(command);
            true
        } else {
            false
        }
    }

    fn section(&self) -> Section {
        match self {
            Self::Command(_) => unreachable!("commands are columns"),
            Self::Define(definition) => cold::put_definition(definition),
            Self::Undefine(client) => cold::put_undefine(*client),
            Self::SessionOver(client) => Section::SessionOver(proto::Client { client: client.0 }),
            Self::Settled { client, settled } => {
                Section::Settled(cold::put_settled(client.0, settled))
            }
            Self::Withdraw { client, numbers } => Section::Withdraw(proto::Withdrawn {
                client: client.0,
                numbers: put_deltas(numbers),
            }),
            Self::Peer { worker, address } => cold::put_peer(*worker, address),
            Self::PeerLost(worker) => cold::put_peer_lost(*worker),
            Self::Call(call) => cold::put_call(call),
            Self::Answer(answer) => cold::put_answer(answer),
            Self::Leave(reason) => cold::put_leave(reason),
        }
    }

    fn get(section: Section, keeper: Keeper) -> Result<Part<Self>, WireError> {
        Ok(Part::One(match section {
            Section::Commands(commands) => return Ok(Part::Rows(CommandRows::new(commands))),
            Section::Define(section) => Self::Define(cold::get_definition(section, keeper)),
            Section::Undefine(section) => Self::Undefine(ClientId(section.client)),
            Section::SessionOver(section) => Self::SessionOver(ClientId(section.client)),
            Section::Settled(section) => Self::Settled {
                client: ClientId(section.node),
                settled: cold::get_settled(&section)?,
            },
            Section::Withdraw(section) => Self::Withdraw {
                client: ClientId(section.client),
                numbers: get_deltas("numbers", section.numbers)?,
            },
            Section::Peer(section) => Self::Peer {
                worker: WorkerId(section.worker),
                address: section.address,
            },
            Section::PeerLost(section) => Self::PeerLost(WorkerId(section.worker)),
            Section::Call(section) => Self::Call(cold::get_call(section, keeper)),
            Section::Answer(section) => Self::Answer(cold::get_answer(section, keeper)?),
            Section::Leave(section) => Self::Leave(section.reason),
            other => return foreign(&other),
        }))
    }

    #[inline]
    fn row(row: Command) -> Self {
        Self::Command(row)
    }
}

impl Message for FromWorker {
    type Columns = Reports;
    type Rows = ReportRows;

    fn cost(&self) -> usize {
        match self {
            Self::Report(report) => Reports::cost(report).max(cold::cost(&[])),
            Self::AskSettled(_) | Self::Drain => cold::cost(&[]),
            Self::Call(call) => cold::call_cost(call),
            Self::Answer(answer) => cold::answer_cost(answer),
            Self::Goodbye { cause, log } => cold::goodbye_cost(cause, log),
        }
    }

    fn put(&self, columns: &mut Reports) -> bool {
        if let Self::Report(report) = self {
            columns.push(report)
        } else {
            false
        }
    }

    fn section(&self) -> Section {
        match self {
            Self::Report(report) => cold::put_health(report),
            Self::AskSettled(client) => Section::AskSettled(proto::Client { client: client.0 }),
            Self::Drain => Section::Drain(proto::Nothing {}),
            Self::Call(call) => cold::put_call(call),
            Self::Answer(answer) => cold::put_answer(answer),
            Self::Goodbye { cause, log } => cold::put_goodbye(cause, log),
        }
    }

    fn get(section: Section, keeper: Keeper) -> Result<Part<Self>, WireError> {
        Ok(Part::One(match section {
            Section::Reports(reports) => {
                return Ok(Part::Rows(ReportRows::new(reports, keeper)));
            }
            Section::Health(section) => Self::Report(cold::get_health(&section)),
            Section::AskSettled(section) => Self::AskSettled(ClientId(section.client)),
            Section::Drain(_) => Self::Drain,
            Section::Call(section) => Self::Call(cold::get_call(section, keeper)),
            Section::Answer(section) => Self::Answer(cold::get_answer(section, keeper)?),
            Section::Goodbye(section) => cold::get_goodbye(section)?,
            other => return foreign(&other),
        }))
    }

    #[inline]
    fn row(row: Report) -> Self {
        Self::Report(row)
    }
}

impl Message for ToClient {
    type Columns = Notices;
    type Rows = NoticeRows;

    fn cost(&self) -> usize {
        match self {
            Self::Notice { standing, .. } => match standing {
                Standing::Failed(failed) => cold::failed_cost(failed),
                Standing::Cancelled(reason) => cold::cost(&[reason.len()]),
                other => Notices::cost(other),
            },
            Self::Place { workers, .. } => cold::cost(&[20 * workers.ranges().len()]),
            Self::Peer { address, .. } => cold::cost(&[address.len()]),
            Self::PeerLost(_) | Self::SettledAsked(_) | Self::Restarted => cold::cost(&[]),
            Self::Joined(members) => cold::cost(&[members.iter().map(cold::member_cost).sum()]),
            Self::Left { cause, .. } => cold::cause_cost(cause),
            Self::Bring(ids) | Self::Unkeep(ids) | Self::Unused(ids) => {
                cold::cost(&[5 * ids.len()])
            }
            Self::Call(call) => cold::call_cost(call),
            Self::Answer(answer) => cold::answer_cost(answer),
            Self::Stuck { keys, .. } => cold::cost(&[keys.iter().map(|key| key.len() + 5).sum()]),
        }
    }

    fn put(&self, columns: &mut Notices) -> bool {
        if let Self::Notice { id, standing } = self {
            columns.push(*id, standing)
        } else {
            false
        }
    }

    fn section(&self) -> Section {
        match self {
            Self::Notice { id, standing } => match standing {
                Standing::Failed(failed) => cold::put_failed(*id, failed),
                Standing::Cancelled(reason) => cold::put_cancelled(*id, reason),
                _ => unreachable!("the others are columns"),
            },
            Self::Place {
                id,
                object,
                workers,
            } => cold::put_place(*id, *object, workers),
            Self::Peer { worker, address } => cold::put_peer(*worker, address),
            Self::PeerLost(worker) => cold::put_peer_lost(*worker),
            Self::Joined(members) => cold::put_joined(members),
            Self::Left { worker, cause } => cold::put_left(*worker, cause),
            Self::SettledAsked(worker) => Section::SettledAsked(proto::Worker { worker: worker.0 }),
            Self::Call(call) => cold::put_call(call),
            Self::Answer(answer) => cold::put_answer(answer),
            Self::Stuck { keys, reason } => cold::put_stuck(keys, *reason),
            Self::Bring(ids) => Section::Bring(proto::Ids {
                ids: put_deltas(ids),
            }),
            Self::Unkeep(ids) => Section::Unkeep(proto::Ids {
                ids: put_deltas(ids),
            }),
            Self::Unused(ids) => Section::Unused(proto::Ids {
                ids: put_deltas(ids),
            }),
            Self::Restarted => Section::Restarted(proto::Nothing {}),
        }
    }

    fn get(section: Section, keeper: Keeper) -> Result<Part<Self>, WireError> {
        Ok(Part::One(match section {
            Section::Notices(notices) => {
                return Ok(Part::Rows(NoticeRows::new(notices, keeper)));
            }
            Section::Failed(section) => cold::get_failed(section, keeper)?,
            Section::Cancelled(section) => cold::get_cancelled(section, keeper),
            Section::Place(section) => cold::get_place(section)?,
            Section::Peer(section) => Self::Peer {
                worker: WorkerId(section.worker),
                address: section.address,
            },
            Section::PeerLost(section) => Self::PeerLost(WorkerId(section.worker)),
            Section::Call(section) => Self::Call(cold::get_call(section, keeper)),
            Section::Answer(section) => Self::Answer(cold::get_answer(section, keeper)?),
            Section::Joined(section) => cold::get_joined(section),
            Section::Left(section) => cold::get_left(section)?,
            Section::SettledAsked(section) => Self::SettledAsked(WorkerId(section.worker)),
            Section::Stuck(section) => cold::get_stuck(section, keeper)?,
            Section::Bring(section) => Self::Bring(get_deltas("ids", section.ids)?),
            Section::Unkeep(section) => Self::Unkeep(get_deltas("ids", section.ids)?),
            Section::Unused(section) => Self::Unused(get_deltas("ids", section.ids)?),
            Section::Restarted(_) => Self::Restarted,
            other => return foreign(&other),
        }))
    }

    #[inline]
    fn row((id, standing): (u32, Standing)) -> Self {
        Self::Notice { id, standing }
    }
}

impl Message for FromClient {
    type Columns = Releases;
    type Rows = ReleaseRows;

    fn cost(&self) -> usize {
        match self {
            Self::Define(definition) => cold::definition_cost(definition),
            Self::Submit(batch) => batch::cost(batch),
            Self::Put {
                key,
                inline,
                class,
                workers,
                ..
            } => cold::cost(&[
                key.len(),
                inline.as_ref().map_or(0, bytes::Bytes::len),
                class.len(),
                workers.iter().map(|name| name.len() + 6).sum(),
            ]),
            Self::Want { keys, .. } => cold::cost(&[keys.iter().map(|key| key.len() + 5).sum()]),
            Self::Release(ids) => Releases::cost(ids),
            Self::Cancel { ids, reason, .. } => cold::cost(&[5 * ids.len(), reason.len()]),
            Self::Retry(ids) | Self::Unkept(ids) | Self::Undefine(ids) => {
                cold::cost(&[5 * ids.len()])
            }
            Self::Call(call) => cold::call_cost(call),
            Self::Answer(answer) => cold::answer_cost(answer),
            Self::Settled { settled, .. } => cold::settled_cost(settled),
            Self::Members | Self::Goodbye => cold::cost(&[]),
        }
    }

    fn put(&self, columns: &mut Releases) -> bool {
        if let Self::Release(ids) = self {
            columns.push(ids);
            true
        } else {
            false
        }
    }

    fn section(&self) -> Section {
        match self {
            Self::Release(_) => unreachable!("releases are columns"),
            Self::Define(definition) => cold::put_definition(definition),
            Self::Submit(batch) => Section::Batch(batch::encode(batch)),
            Self::Put { .. } => cold::put_put(self),
            Self::Want { first, keys } => cold::put_want(*first, keys),
            Self::Cancel { ids, force, reason } => Section::Cancel(proto::CancelTasks {
                ids: put_deltas(ids),
                force: *force,
                reason: reason.clone(),
            }),
            Self::Retry(ids) => Section::Retry(proto::Ids {
                ids: put_deltas(ids),
            }),
            Self::Undefine(ids) => Section::GiveUp(proto::Ids {
                ids: put_deltas(ids),
            }),
            Self::Unkept(ids) => Section::Unkept(proto::Ids {
                ids: put_deltas(ids),
            }),
            Self::Members => Section::Members(proto::Nothing {}),
            Self::Settled { worker, settled } => {
                Section::SettledTold(cold::put_settled(worker.0, settled))
            }
            Self::Call(call) => cold::put_call(call),
            Self::Answer(answer) => cold::put_answer(answer),
            Self::Goodbye => Section::Bye(proto::Nothing {}),
        }
    }

    fn get(section: Section, keeper: Keeper) -> Result<Part<Self>, WireError> {
        Ok(Part::One(match section {
            Section::Releases(releases) => return Ok(Part::Rows(ReleaseRows::new(releases))),
            Section::Define(section) => Self::Define(cold::get_definition(section, keeper)),
            Section::Batch(section) => Self::Submit(batch::decode(section, keeper)?),
            Section::Put(section) => cold::get_put(section, keeper),
            Section::Want(section) => cold::get_want(section)?,
            Section::Cancel(section) => cold::get_cancel(section, keeper)?,
            Section::Retry(section) => Self::Retry(get_deltas("ids", section.ids)?),
            Section::GiveUp(section) => Self::Undefine(get_deltas("ids", section.ids)?),
            Section::Unkept(section) => Self::Unkept(get_deltas("ids", section.ids)?),
            Section::Call(section) => Self::Call(cold::get_call(section, keeper)),
            Section::Answer(section) => Self::Answer(cold::get_answer(section, keeper)?),
            Section::Members(_) => Self::Members,
            Section::SettledTold(section) => Self::Settled {
                worker: WorkerId(section.node),
                settled: cold::get_settled(&section)?,
            },
            Section::Bye(_) => Self::Goodbye,
            other => return foreign(&other),
        }))
    }

    #[inline]
    fn row(row: Vec<u32>) -> Self {
        Self::Release(row)
    }

    fn split(&self) -> Option<Vec<Self>> {
        let ids = |ids: &Vec<u32>, make: &dyn Fn(Vec<u32>) -> Self| {
            let pieces = ids.chunks(LIST).map(|piece| make(piece.to_vec()));
            (ids.len() > LIST).then(|| pieces.collect())
        };
        match self {
            Self::Release(all) => ids(all, &Self::Release),
            Self::Retry(all) => ids(all, &Self::Retry),
            Self::Cancel {
                ids: all,
                force,
                reason,
            } => ids(all, &|ids| Self::Cancel {
                ids,
                force: *force,
                reason: reason.clone(),
            }),
            Self::Want { first, keys } if keys.len() > LIST / 16 => {
                let pieces = keys.chunks(LIST / 16).zip((*first..).step_by(LIST / 16));
                let piece = |(keys, first): (&[bytes::Bytes], u32)| Self::Want {
                    first,
                    keys: keys.to_vec(),
                };
                Some(pieces.map(piece).collect())
            }
            _ => None,
        }
    }
}
