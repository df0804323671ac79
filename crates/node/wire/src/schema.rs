//! Types of this crate beside the generated ones: each pair is declared once, and converted both ways
//! by that declaration. What the schema cannot say is checked where a type is made of a generated
//! one.

use std::sync::Arc;

use bytes::Bytes;
use treadle_broadcast::{Runs, Settled};
use treadle_shuffle::{ApplicationId, AttemptId, Generation, ShuffleId};
use treadle_types::{Cause, ClientId, WorkerId};

use super::codec::Pieces;
use super::column::{Cells, MOST, at_most, get_all, put_all};
use super::keep::Detacher;
use super::{WireError, proto};

/// A type that is a part of messages, where it is a `P`.
pub trait Wire<P>: Sized {
    fn to_wire(&self) -> P;

    /// # Errors
    /// For what the schema allows and has no meaning.
    fn of_wire(wire: P, detacher: Detacher) -> Result<Self, WireError>;
}

/// A field of a message, which an error names.
#[inline]
pub(super) fn field<P, T: Wire<P>>(
    name: &'static str,
    wire: P,
    detacher: Detacher,
) -> Result<T, WireError> {
    T::of_wire(wire, detacher).map_err(|error| error.in_column(name))
}

/// Declares structs whose fields have the same names as those of generated ones.
macro_rules! wire_struct {
    ($($own:ident => $wire:ty { $($name:ident),* $(,)? } $(check $check:expr)?;)*) => {$(
        impl Wire<$wire> for $own {
            fn to_wire(&self) -> $wire {
                type Generated = $wire;
                #[allow(clippy::needless_update, reason = "some have more fields")]
                Generated {
                    $($name: self.$name.to_wire(),)*
                    ..Default::default()
                }
            }

            fn of_wire(wire: $wire, detacher: Detacher) -> Result<Self, WireError> {
                let own = $own { $($name: field(stringify!($name), wire.$name, detacher)?),* };
                $(let own = $check(own)?;)?
                Ok(own)
            }
        }
    )*};
}
pub(super) use wire_struct;

/// Declares enums whose variants have the same names as those of a generated `oneof`: `units` have
/// nothing, `values` one thing, and `structs` the fields of a message. `to` and `from` have the
/// exceptions.
macro_rules! wire_enum {
    ($own:ty => $wire:ty {
        $(units { $($unit:ident),* $(,)? })?
        $(values { $($value:ident),* $(,)? })?
        $(structs { $($name:ident: $message:ty { $($field:ident),* $(,)? }),* $(,)? })?
        $(to { $($to:pat => $to_wire:expr),* $(,)? })?
        $(from($detacher:ident) { $($from:pat => $of_wire:expr),* $(,)? })?
    }) => {
        impl Wire<$wire> for $own {
            fn to_wire(&self) -> $wire {
                type Generated = $wire;
                match self {
                    $($(Self::$unit => Generated::$unit(Default::default()),)*)?
                    $($(Self::$value(value) => Generated::$value(value.to_wire()),)*)?
                    $($(Self::$name { $($field),* } => {
                        type Fields = $message;
                        Generated::$name(Fields { $($field: $field.to_wire()),* })
                    })*)?
                    $($($to => $to_wire,)*)?
                }
            }

            fn of_wire(wire: $wire, detacher: Detacher) -> Result<Self, WireError> {
                type Generated = $wire;
                $(let $detacher = detacher;)?
                Ok(match wire {
                    $($(Generated::$unit(_) => Self::$unit,)*)?
                    $($(Generated::$value(value) => {
                        Self::$value(field(stringify!($value), value, detacher)?)
                    })*)?
                    $($(Generated::$name(message) => Self::$name {
                        $($field: field(stringify!($field), message.$field, detacher)?),*
                    },)*)?
                    $($($from => $of_wire,)*)?
                })
            }
        }
    };
}
pub(super) use wire_enum;

/// Declares messages that others cannot do without: generated code makes every one optional.
macro_rules! wire_required {
    ($($own:ty => $wire:ty, $name:literal;)*) => {$(
        impl Wire<Option<$wire>> for $own {
            fn to_wire(&self) -> Option<$wire> {
                Some(Wire::<$wire>::to_wire(self))
            }

            fn of_wire(wire: Option<$wire>, detacher: Detacher) -> Result<Self, WireError> {
                Self::of_wire(wire.ok_or(WireError::Missing($name))?, detacher)
            }
        }
    )*};
}
pub(super) use wire_required;

/// Declares messages that are nothing but a `oneof`.
macro_rules! wire_wrapped {
    ($($own:ty => $wire:ident::$message:ident { $field:ident };)*) => {$(
        impl Wire<$wire::$message> for $own {
            fn to_wire(&self) -> $wire::$message {
                let $field = Some(self.to_wire());
                $wire::$message { $field }
            }

            fn of_wire(wire: $wire::$message, detacher: Detacher) -> Result<Self, WireError> {
                let wire = wire.$field.ok_or(WireError::Missing(stringify!($field)))?;
                Self::of_wire(wire, detacher)
            }
        }
    )*};
}
pub(super) use wire_wrapped;

/// Declares messages that are nothing but a list.
macro_rules! wire_list {
    ($($own:ty => $wire:ident::$message:ident { $list:ident };)*) => {$(
        impl Wire<$wire::$message> for Vec<$own> {
            fn to_wire(&self) -> $wire::$message {
                $wire::$message {
                    $list: self.to_wire(),
                }
            }

            fn of_wire(wire: $wire::$message, detacher: Detacher) -> Result<Self, WireError> {
                Self::of_wire(wire.$list, detacher)
            }
        }
    )*};
}
pub(super) use wire_list;

/// Declares enums of words only.
macro_rules! wire_words {
    ($own:ty => $wire:ty { $($word:ident),* $(,)? }, $name:literal) => {
        impl Wire<i32> for $own {
            fn to_wire(&self) -> i32 {
                type Generated = $wire;
                match self {
                    $(Self::$word => Generated::$word.into(),)*
                }
            }

            fn of_wire(wire: i32, _: Detacher) -> Result<Self, WireError> {
                type Generated = $wire;
                let word = Generated::try_from(wire).map_err(|_| WireError::Missing($name))?;
                Ok(match word {
                    $(Generated::$word => Self::$word,)*
                })
            }
        }
    };
}
pub(super) use wire_words;

macro_rules! plain {
    ($($own:ty),*) => {$(
        impl Wire<$own> for $own {
            fn to_wire(&self) -> $own {
                self.to_owned()
            }

            fn of_wire(wire: $own, _: Detacher) -> Result<Self, WireError> {
                Ok(wire)
            }
        }
    )*};
}

plain!(bool, u32, u64, i32, f64, String);

macro_rules! ids {
    ($($own:ident: $wire:ty),* $(,)?) => {$(
        impl Wire<$wire> for $own {
            fn to_wire(&self) -> $wire {
                self.0
            }

            fn of_wire(wire: $wire, _: Detacher) -> Result<Self, WireError> {
                Ok(Self(wire))
            }
        }
    )*};
}

ids!(
    WorkerId: u32, ClientId: u32, Generation: u32, ShuffleId: u64, AttemptId: u64, ApplicationId: u64,
);

impl Wire<String> for Arc<str> {
    fn to_wire(&self) -> String {
        String::from(&**self)
    }

    fn of_wire(wire: String, _: Detacher) -> Result<Self, WireError> {
        Ok(wire.into())
    }
}

impl Wire<Bytes> for Bytes {
    fn to_wire(&self) -> Bytes {
        self.clone()
    }

    fn of_wire(wire: Bytes, detacher: Detacher) -> Result<Self, WireError> {
        Ok(detacher.detach_field(wire))
    }
}

impl<P, T: Wire<P>> Wire<Option<P>> for Option<T> {
    fn to_wire(&self) -> Option<P> {
        self.as_ref().map(T::to_wire)
    }

    fn of_wire(wire: Option<P>, detacher: Detacher) -> Result<Self, WireError> {
        wire.map(|wire| T::of_wire(wire, detacher)).transpose()
    }
}

impl<P, T: Wire<P>> Wire<Vec<P>> for Vec<T> {
    fn to_wire(&self) -> Vec<P> {
        self.iter().map(T::to_wire).collect()
    }

    fn of_wire(wire: Vec<P>, detacher: Detacher) -> Result<Self, WireError> {
        at_most("", wire.len() as u64, MOST)?;
        wire.into_iter()
            .map(|wire| T::of_wire(wire, detacher))
            .collect()
    }
}

macro_rules! pointers {
    ($($pointer:ident),*) => {$(
        impl<P, T: Wire<P>> Wire<P> for $pointer<T> {
            fn to_wire(&self) -> P {
                (**self).to_wire()
            }

            fn of_wire(wire: P, detacher: Detacher) -> Result<Self, WireError> {
                T::of_wire(wire, detacher).map(Self::new)
            }
        }
    )*};
}

pointers!(Box, Arc);

/// A column of deltas.
impl Wire<Bytes> for Vec<u32> {
    fn to_wire(&self) -> Bytes {
        put_all(self, |column, value| column.put_delta((*value).into()))
    }

    fn of_wire(wire: Bytes, _: Detacher) -> Result<Self, WireError> {
        get_all(wire, |cells| {
            let value = cells.get_delta()?;
            u32::try_from(value).map_err(|_| cells.range(value))
        })
    }
}

/// A column of varints, which is empty where all are 0.
impl Wire<Bytes> for Vec<u16> {
    fn to_wire(&self) -> Bytes {
        if self.iter().all(|value| *value == 0) {
            return Bytes::new();
        }
        put_all(self, |column, value| column.put((*value).into()))
    }

    fn of_wire(wire: Bytes, _: Detacher) -> Result<Self, WireError> {
        get_all(wire, |cells| {
            let value = cells.get()?;
            u16::try_from(value).map_err(|_| cells.range(value))
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
impl Wire<Option<proto::Keys>> for Vec<Bytes> {
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
impl Wire<Option<proto::Pieces>> for Vec<Bytes> {
    fn to_wire(&self) -> Option<proto::Pieces> {
        let (lengths, pieces) = put_pieces(self);
        Some(proto::Pieces { lengths, pieces })
    }

    fn of_wire(wire: Option<proto::Pieces>, detacher: Detacher) -> Result<Self, WireError> {
        let wire = wire.unwrap_or_default();
        get_pieces(wire.lengths, detacher.column(Cells::new("", wire.pieces)))
    }
}

/// A set of integers: for each run how far it begins after the one before, and how long it is.
impl Wire<Vec<u64>> for Settled {
    fn to_wire(&self) -> Vec<u64> {
        self.0.gaps().collect()
    }

    fn of_wire(wire: Vec<u64>, _: Detacher) -> Result<Self, WireError> {
        let runs = Runs::from_gaps(&wire).map(Settled);
        runs.map_err(|value| WireError::Range { column: "", value })
    }
}

/// Ids of workers, or partitions.
impl Wire<Vec<u64>> for Runs {
    fn to_wire(&self) -> Vec<u64> {
        self.gaps().collect()
    }

    fn of_wire(wire: Vec<u64>, detacher: Detacher) -> Result<Self, WireError> {
        let Settled(runs) = Wire::of_wire(wire, detacher)?;
        let end = runs.ranges().last().map_or(0, |&(_, end)| end);
        if end > 1 + u64::from(u32::MAX) {
            return Err(WireError::Range {
                column: "",
                value: end - 1,
            });
        }
        at_most("", runs.len(), MOST)?;
        Ok(runs)
    }
}

impl Wire<proto::Resource> for (String, f64) {
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

wire_enum! {
    Cause => proto::cause::Cause {
        units { OutOfMemory, MemoryLimit, Unreachable, Drained }
        values { Signal, Exited, Misbehaved }
    }
}

wire_wrapped! {
    Cause => proto::Cause { cause };
}

wire_required! {
    Cause => proto::Cause, "cause";
}
