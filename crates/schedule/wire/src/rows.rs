//! The messages that tasks cause, which share columns. Their fields are in the order of the columns
//! in `proto/cluster.proto`.

use std::time::Duration;

use bytes::Bytes;
use treadle_codec::{
    Blob, Cells, Class, Codec, Delta, Kept, List, Object, ObjectNumber, OptionalBytes, Varint,
    WireError, columns_of_enum, columns_of_struct,
};
use treadle_messages::{Standing, ToClient};
use treadle_types::{
    Assignment, ClientId, Command, Holders, Input, Inputs, Place, Priority, Report, Returned,
    WorkerId,
};

type Workers = List<Varint<WorkerId>, Holders>;

columns_of_enum! {
    /// Where an input is.
    pub(super) PlaceColumns, PlaceRows: &Place => Place;
    columns {
        value: Blob<Cells>,
        holders: Workers,
    }
    kinds {
        0: (Place::Here) [],
        1: (Place::Inline(value)) [value],
        2: (Place::At(holders)) [holders],
    }
}

pub(super) struct Places;

impl Codec for Places {
    type Value = Place;
    type Columns = PlaceColumns;
    type Rows = PlaceRows;

    #[inline]
    fn put(columns: &mut PlaceColumns, place: &Place) {
        columns.put(place);
    }

    #[inline]
    fn get(rows: &mut PlaceRows) -> Result<Place, WireError> {
        rows.get()
    }

    #[inline]
    fn cost(place: &Place) -> usize {
        PlaceColumns::cost(place)
    }
}

columns_of_struct! {
    pub(super) Priorities: Priority { user: Delta<i32>, submission: Delta<u32>, rank: Delta<u32> }
}

columns_of_struct! {
    pub(super) InputColumns: Input { object: Object, nbytes: Varint<u64>, place: Places }
}

columns_of_enum! {
    /// Scheduler to worker.
    pub CommandColumns, CommandRows: &Command => Command;
    columns {
        object: Object,
        priority: Priorities,
        client: Delta<ClientId>,
        keep: Varint<bool>,
        actor: Varint<bool>,
        recipe: Blob<Cells>,
        inputs: List<InputColumns, Inputs>,
        nbytes: Varint<u64>,
        holders: Workers,
    }
    kinds {
        0: (Command::Assign(Assignment {
            object, priority, client, recipe, inputs, keep, actor
        })) [object, priority, client, recipe, inputs, keep, actor],
        1: (Command::Retract(object)) [object],
        2: (Command::Cancel(object)) [object],
        3: (Command::Release(object)) [object],
        4: (Command::Copy { object, nbytes, holders }) [object, nbytes, holders],
    }
}

columns_of_enum! {
    /// Worker to scheduler.
    pub ReportColumns, ReportRows: &Report => Report;
    columns {
        object: Object,
        duration: Varint<Duration>,
        nbytes: Varint<u64>,
        kept: Varint<bool>,
        inline: OptionalBytes,
        class: Class,
        error: Blob<Kept>,
        input: Object,
        tried: Workers,
    }
    kinds {
        0: (Report::Finished {
            object, value: Returned { nbytes, inline, kept, class }, duration
        }) [object, duration, nbytes, kept, inline, class],
        1: (Report::Failed { object, error, duration }) [object, duration, error],
        2: (Report::Retracted(object)) [object],
        3: (Report::Started(object)) [object],
        4: (Report::Stopped(object)) [object],
        5: (Report::Unavailable { object, input, tried }) [object, input, tried],
        6: (Report::Stored { object, nbytes }) [object, nbytes],
        7: (Report::CopyFailed { object, tried }) [object, tried],
        8: (Report::Gone(object)) [object],
        9: (Report::Seceded(object)) [object],
        10: (Report::Rejoined(object)) [object],
        11: (Report::GivenBack(object)) [object],
        12: (Report::Immovable { object, input, error }) [object, input, error],
        13: (Report::NotCopyable(object)) [object],
    }
}

/// A [`ToClient::Notice`] that is written to columns, by reference.
#[derive(Clone, Copy, Debug)]
pub enum Notice<'a> {
    /// [`Standing::Finished`].
    Finished {
        /// The client's id of the key.
        id: &'a u32,
        /// The value's size.
        nbytes: &'a u64,
        /// The value, where it is small.
        inline: &'a Option<Bytes>,
        /// The type of a value that is not inline.
        class: &'a Bytes,
        /// A worker that has it.
        holder: &'a Option<WorkerId>,
        /// The value's attempt.
        object: &'a u64,
    },
    /// [`Standing::Pending`].
    Pending(&'a u32),
    /// [`Standing::Unknown`].
    Unknown(&'a u32),
}

columns_of_enum! {
    /// Scheduler to client.
    pub NoticeColumns, NoticeRows: Notice<'_> => ToClient;
    columns {
        id: Delta<u32>,
        nbytes: Varint<u64>,
        inline: OptionalBytes,
        class: Class,
        holder: Varint<Option<WorkerId>>,
        object: ObjectNumber,
    }
    kinds {
        0: (Notice::Finished { id, nbytes, inline, class, holder, object })
            [id, nbytes, inline, class, holder, object]
            => ToClient::Notice {
                id,
                standing: Standing::Finished { nbytes, inline, class, holder, object },
            },
        1: (Notice::Pending(id)) [id]
            => ToClient::Notice { id, standing: Standing::Pending },
        2: (Notice::Unknown(id)) [id]
            => ToClient::Notice { id, standing: Standing::Unknown },
    }
}

columns_of_enum! {
    /// Client to scheduler.
    pub ReleaseColumns, ReleaseRows: &Vec<u32> => Vec<u32>;
    columns {
        ids: List<Delta<u32>, Vec<u32>>,
    }
    kinds {
        0: (ids) [ids],
    }
}
