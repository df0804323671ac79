//! Which messages go in which direction.

use treadle_codec::{Columns, Detacher, Rows, Schema, Wire, WireError, wire_enum};
use treadle_messages::{FromClient, FromWorker, Standing, ToClient, ToWorker};
use treadle_types::{Command, Report};

use super::cold::Cluster;
use super::proto;
use super::proto::section::Section;
use super::rows::{
    CommandColumns, CommandRows, Notice, NoticeColumns, NoticeRows, ReleaseColumns, ReleaseRows,
    ReportColumns, ReportRows,
};

/// Entries of a list that go into one message: long lists that mean the same in pieces are split.
const LIST: usize = 8192;

/// A message of one direction: [`ToWorker`], [`FromWorker`], [`ToClient`] or [`FromClient`].
pub trait Message: Wire<Section, Cluster> + Clone {
    /// What is said so often that it goes in columns.
    #[doc(hidden)]
    type Row<'a>: Copy
    where
        Self: 'a;
    #[doc(hidden)]
    type Columns: Columns;
    #[doc(hidden)]
    type Rows: Rows;
    /// The field of the columns in a section.
    #[doc(hidden)]
    const COLUMNS: u32;

    /// The message as a row of the columns; `None`: it is a section of its own.
    #[doc(hidden)]
    fn row(&self) -> Option<Self::Row<'_>>;
    /// An upper bound of what a row adds, in bytes.
    #[doc(hidden)]
    fn cost(row: Self::Row<'_>) -> usize;
    #[doc(hidden)]
    fn put(columns: &mut Self::Columns, row: Self::Row<'_>);
    /// The columns of a section; otherwise the section.
    #[doc(hidden)]
    #[allow(
        clippy::result_large_err,
        reason = "a section that is not columns is no error"
    )]
    fn rows(section: Section, detacher: Detacher) -> Result<Self::Rows, Section>;
    /// The next row.
    #[doc(hidden)]
    fn get(rows: &mut Self::Rows) -> Result<Option<Self>, WireError>;

    /// Several messages that mean the same, where it is long and that is possible.
    #[doc(hidden)]
    fn split(&self) -> Option<Vec<Self>> {
        None
    }
}

/// Declares a direction: its columns, how a message is a row, and a row a message; and the names of
/// the columns in the schema.
macro_rules! direction {
    ($own:ident, $columns:ident, $rows:ident, $row:ty;
     $section:ident = $number:literal { $($name:ident),* $(,)? }
     $message:ident => $as_row:expr, $found:ident => $of_row:expr;
     $($more:item)*) => {
        impl Message for $own {
            type Row<'a> = $row;
            type Columns = $columns;
            type Rows = $rows;
            const COLUMNS: u32 = $number;

            #[inline]
            fn row(&self) -> Option<Self::Row<'_>> {
                let $message = self;
                $as_row
            }

            #[inline]
            fn cost(row: Self::Row<'_>) -> usize {
                $columns::cost(row)
            }

            #[inline]
            fn put(columns: &mut $columns, row: Self::Row<'_>) {
                columns.put(row);
            }

            fn rows(section: Section, detacher: Detacher) -> Result<$rows, Section> {
                let Section::$section(columns) = section else {
                    return Err(section);
                };
                let columns = [$((stringify!($name), columns.$name)),*];
                Ok(Rows::new(&mut columns.into_iter(), detacher))
            }

            #[inline]
            fn get(rows: &mut $rows) -> Result<Option<Self>, WireError> {
                if rows.kinds.is_done() {
                    return Ok(None);
                }
                let $found = rows.get()?;
                Ok(Some($of_row))
            }

            $($more)*
        }
    };
}

direction! {
    ToWorker, CommandColumns, CommandRows, &'a Command;
    Commands = 1 {
        kinds, tasks, attempts, users, submissions, ranks, clients, keep, actor, recipe_lengths,
        recipes, input_counts, input_tasks, input_attempts, input_nbytes, places, inline_lengths,
        inlines, input_holder_counts, input_holders, nbytes, holder_counts, holders,
    }
    message => match message {
        Self::Command(command) => Some(command),
        _ => None,
    },
    command => Self::Command(command);
}

wire_enum! { Cluster:
    ToWorker => Section {
        values {
            Define, ForgetClient, SessionOver, PeerLost, Call, Answer, ToNode,
        }
        structs {
            Leave: proto::Leave { cause, reason },
            Settled: proto::Settled { client, settled },
            Withdraw: proto::Withdraw { client, numbers },
            Peer: proto::Peer { worker, address },
        }
        to { Self::Command(_) => unreachable!("commands are in columns") }
        from(_keeper) { other => return Err(foreign(&other)) }
    }
}

direction! {
    FromWorker, ReportColumns, ReportRows, &'a Report;
    Reports = 2 {
        kinds, tasks, attempts, durations, nbytes, kept, inline_lengths, inlines, class_lengths,
        classes, error_lengths, errors, input_tasks, input_attempts, tried_counts, tried,
    }
    message => match message {
        Self::Report(Report::Health { .. }) => None,
        Self::Report(report) => Some(report),
        _ => None,
    },
    report => Self::Report(report);
}

wire_enum! { Cluster:
    FromWorker => Section {
        units { Drain }
        values { AskSettled, Call, Answer, ToMaster }
        structs { Leaving: proto::Leaving { cause, log } }
        to {
            &Self::Report(Report::Health { managed, process, spilled, paused }) => {
                Section::Health(proto::Health { managed, process, spilled, paused })
            },
            Self::Report(_) => unreachable!("other reports are in columns"),
        }
        from(_keeper) {
            Section::Health(proto::Health { managed, process, spilled, paused }) => {
                Self::Report(Report::Health { managed, process, spilled, paused })
            },
            other => return Err(foreign(&other)),
        }
    }
}

direction! {
    ToClient, NoticeColumns, NoticeRows, Notice<'a>;
    Notices = 3 {
        kinds, ids, nbytes, inline_lengths, inlines, class_lengths, classes, holders, tasks,
        attempts,
    }
    message => match message {
        Self::Notice { id, standing } => match standing {
            Standing::Finished { nbytes, inline, class, holder, object } => {
                Some(Notice::Finished { id, nbytes, inline, class, holder, object })
            }
            Standing::Pending => Some(Notice::Pending(id)),
            Standing::Unknown => Some(Notice::Unknown(id)),
            Standing::Failed(_) | Standing::Cancelled(_) => None,
        },
        _ => None,
    },
    notice => notice;
}

wire_enum! { Cluster:
    ToClient => Section {
        units { Restarted }
        values {
            PeerLost, Joined, SettledAsked, Call, Answer, Bring, Unkeep, Unused,
        }
        structs {
            Place: proto::Place { id, object, workers },
            Peer: proto::Peer { worker, address },
            Left: proto::Left { worker, cause },
            Stuck: proto::Stuck { keys, reason },
        }
        to {
            Self::Notice { id, standing: Standing::Failed(failed) } => {
                Section::Failed(proto::FailedTask { id: *id, failed: Some(Cluster::to_wire(failed)) })
            },
            Self::Notice { id, standing: Standing::Cancelled(reason) } => {
                Section::Cancelled(proto::CancelledTask { id: *id, reason: reason.clone() })
            },
            Self::Notice { .. } => unreachable!("other notices are in columns"),
        }
        from(detacher) {
            Section::Failed(proto::FailedTask { id, failed }) => {
                let failed = failed.ok_or(WireError::Missing("failure"))?;
                Self::Notice { id, standing: Standing::Failed(Wire::<_, Cluster>::of_wire(failed, detacher)?) }
            },
            Section::Cancelled(proto::CancelledTask { id, reason }) => {
                Self::Notice { id, standing: Standing::Cancelled(detacher.detach_field(reason)) }
            },
            other => return Err(foreign(&other)),
        }
    }
}

direction! {
    FromClient, ReleaseColumns, ReleaseRows, &'a Vec<u32>;
    Releases = 4 { kinds, counts, ids }
    message => match message {
        Self::Release(ids) => Some(ids),
        _ => None,
    },
    ids => Self::Release(ids);

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

wire_enum! { Cluster:
    FromClient => Section {
        units { Members, Goodbye }
        values { Define, Register, Submit, Undefine, Unkept, Retry, Call, Answer }
        structs {
            Put: proto::Put { id, key, nbytes, inline, class, workers, copies, kept },
            Want: proto::Want { first, keys },
            Cancel: proto::Cancel { ids, force, reason },
            SettledTold: proto::SettledTold { worker, settled },
        }
        to { Self::Release(_) => unreachable!("releases are in columns") }
        from(_keeper) { other => return Err(foreign(&other)) }
    }
}

/// A section of another direction, by its name.
fn foreign(section: &Section) -> WireError {
    macro_rules! names {
        ($($name:ident),* $(,)?) => {
            match section {
                $(Section::$name(_) => stringify!($name),)*
            }
        };
    }
    WireError::Direction(names!(
        Commands,
        Reports,
        Notices,
        Releases,
        Submit,
        Put,
        Want,
        Cancel,
        Retry,
        Define,
        Undefine,
        ForgetClient,
        Peer,
        PeerLost,
        Call,
        Answer,
        Leave,
        Leaving,
        Health,
        Drain,
        Goodbye,
        Failed,
        Cancelled,
        Place,
        Stuck,
        Restarted,
        Bring,
        Unkeep,
        Unkept,
        Unused,
        Withdraw,
        SessionOver,
        Members,
        Joined,
        Left,
        AskSettled,
        SettledAsked,
        SettledTold,
        Settled,
        ToNode,
        ToMaster,
        Register,
    ))
}
