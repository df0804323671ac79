//! Types beside generated ones: each pair is declared once, and converted both ways by that declaration.
//! What the schema cannot say is checked where a type is made of a generated one.

use alloc::borrow::ToOwned;
use alloc::boxed::Box;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;

use bytes::Bytes;
use treadle_types::Runs;

use crate::{Detacher, MOST, WireError, at_most, get_all, put_all};

/// A type that is a part of messages of the schema `S`, where it is a `P`.
///
/// Without `S`, a plane could say nothing of types that are neither its own nor generated for it: its core's
/// in an `Option`, or as integers.
pub trait Wire<P, S>: Sized {
    /// As the generated type.
    fn to_wire(&self) -> P;

    /// From the generated type.
    ///
    /// # Errors
    /// For what the schema allows and has no meaning.
    fn of_wire(wire: P, detacher: Detacher) -> Result<Self, WireError>;
}

/// The schema of a plane, as a type of the crate that has its declarations. It has no values.
pub trait Schema: Sized {
    /// A value as it is in this schema.
    #[inline]
    fn to_wire<P, T: Wire<P, Self>>(value: &T) -> P {
        value.to_wire()
    }

    /// A field of a message, which an error names.
    ///
    /// # Errors
    /// As [`Wire::of_wire`].
    #[inline]
    fn field<P, T: Wire<P, Self>>(
        name: &'static str,
        wire: P,
        detacher: Detacher,
    ) -> Result<T, WireError> {
        T::of_wire(wire, detacher).map_err(|error| error.in_column(name))
    }
}

/// Declares structs whose fields have the same names as those of generated ones.
#[macro_export]
macro_rules! wire_struct {
    ($schema:ty: $($own:ident => $wire:ty { $($name:ident),* $(,)? } $(check $check:expr)?;)*) => {$(
        impl $crate::Wire<$wire, $schema> for $own {
            fn to_wire(&self) -> $wire {
                type Generated = $wire;
                #[allow(clippy::needless_update, reason = "some have more fields")]
                Generated {
                    $($name: <$schema as $crate::Schema>::to_wire(&self.$name),)*
                    ..Default::default()
                }
            }

            fn of_wire(
                wire: $wire,
                detacher: $crate::Detacher,
            ) -> Result<Self, $crate::WireError> {
                let own = $own {
                    $($name: <$schema as $crate::Schema>::field(
                        stringify!($name),
                        wire.$name,
                        detacher,
                    )?),*
                };
                $(let own = $check(own)?;)?
                Ok(own)
            }
        }
    )*};
}

/// Declares enums whose variants have the same names as those of a generated `oneof`: `units` have
/// nothing, `values` one thing, and `structs` the fields of a message. `to` and `from` have the
/// exceptions.
#[macro_export]
macro_rules! wire_enum {
    ($schema:ty: $own:ty => $wire:ty {
        $(units { $($unit:ident),* $(,)? })?
        $(values { $($value:ident),* $(,)? })?
        $(structs { $($name:ident: $message:ty { $($field:ident),* $(,)? }),* $(,)? })?
        $(to { $($to:pat => $to_wire:expr),* $(,)? })?
        $(from($detacher:ident) { $($from:pat => $of_wire:expr),* $(,)? })?
    }) => {
        impl $crate::Wire<$wire, $schema> for $own {
            fn to_wire(&self) -> $wire {
                type Generated = $wire;
                match self {
                    $($(Self::$unit => Generated::$unit(Default::default()),)*)?
                    $($(Self::$value(value) => {
                        Generated::$value(<$schema as $crate::Schema>::to_wire(value))
                    })*)?
                    $($(Self::$name { $($field),* } => {
                        type Fields = $message;
                        Generated::$name(Fields { $($field: <$schema as $crate::Schema>::to_wire($field)),* })
                    })*)?
                    $($($to => $to_wire,)*)?
                }
            }

            fn of_wire(
                wire: $wire,
                detacher: $crate::Detacher,
            ) -> Result<Self, $crate::WireError> {
                type Generated = $wire;
                $(let $detacher = detacher;)?
                Ok(match wire {
                    $($(Generated::$unit(_) => Self::$unit,)*)?
                    $($(Generated::$value(value) => {
                        let name = stringify!($value);
                        Self::$value(<$schema as $crate::Schema>::field(name, value, detacher)?)
                    })*)?
                    $($(Generated::$name(message) => Self::$name {
                        $($field: <$schema as $crate::Schema>::field(
                            stringify!($field),
                            message.$field,
                            detacher,
                        )?),*
                    },)*)?
                    $($($from => $of_wire,)*)?
                })
            }
        }
    };
}

/// Declares messages that others cannot do without: generated code makes every one optional.
#[macro_export]
macro_rules! wire_required {
    ($schema:ty: $($own:ty => $wire:ty, $name:literal;)*) => {$(
        impl $crate::Wire<Option<$wire>, $schema> for $own {
            fn to_wire(&self) -> Option<$wire> {
                Some(<$schema as $crate::Schema>::to_wire::<$wire, _>(self))
            }

            fn of_wire(
                wire: Option<$wire>,
                detacher: $crate::Detacher,
            ) -> Result<Self, $crate::WireError> {
                let wire = wire.ok_or($crate::WireError::Missing($name))?;
                <Self as $crate::Wire<$wire, $schema>>::of_wire(wire, detacher)
            }
        }
    )*};
}

/// Declares messages that are nothing but a `oneof`.
#[macro_export]
macro_rules! wire_wrapped {
    ($schema:ty: $($own:ty => $wire:ident::$message:ident { $field:ident };)*) => {$(
        impl $crate::Wire<$wire::$message, $schema> for $own {
            fn to_wire(&self) -> $wire::$message {
                let $field = Some(<$schema as $crate::Schema>::to_wire(self));
                $wire::$message { $field }
            }

            fn of_wire(
                wire: $wire::$message,
                detacher: $crate::Detacher,
            ) -> Result<Self, $crate::WireError> {
                let wire = wire.$field.ok_or($crate::WireError::Missing(stringify!($field)))?;
                $crate::Wire::<_, $schema>::of_wire(wire, detacher)
            }
        }
    )*};
}

/// Declares messages that are nothing but a list.
#[macro_export]
macro_rules! wire_list {
    ($schema:ty: $($own:ty => $wire:ident::$message:ident { $list:ident };)*) => {$(
        impl $crate::Wire<$wire::$message, $schema> for Vec<$own> {
            fn to_wire(&self) -> $wire::$message {
                $wire::$message {
                    $list: <$schema as $crate::Schema>::to_wire(self),
                }
            }

            fn of_wire(
                wire: $wire::$message,
                detacher: $crate::Detacher,
            ) -> Result<Self, $crate::WireError> {
                $crate::Wire::<_, $schema>::of_wire(wire.$list, detacher)
            }
        }
    )*};
}

/// Declares enums of words only.
#[macro_export]
macro_rules! wire_words {
    ($schema:ty: $own:ty => $wire:ty { $($word:ident),* $(,)? }, $name:literal) => {
        impl $crate::Wire<i32, $schema> for $own {
            fn to_wire(&self) -> i32 {
                type Generated = $wire;
                match self {
                    $(Self::$word => Generated::$word.into(),)*
                }
            }

            fn of_wire(wire: i32, _: $crate::Detacher) -> Result<Self, $crate::WireError> {
                type Generated = $wire;
                let word = Generated::try_from(wire).map_err(|_| $crate::WireError::Missing($name))?;
                Ok(match word {
                    $(Generated::$word => Self::$word,)*
                })
            }
        }
    };
}

/// Declares ids that are integers.
#[macro_export]
macro_rules! wire_ids {
    ($schema:ty: $($own:ident => $wire:ty;)*) => {$(
        impl $crate::Wire<$wire, $schema> for $own {
            fn to_wire(&self) -> $wire {
                self.0
            }

            fn of_wire(wire: $wire, _: $crate::Detacher) -> Result<Self, $crate::WireError> {
                Ok(Self(wire))
            }
        }
    )*};
}

/// Declares what is in another schema as it is in its own.
#[macro_export]
macro_rules! wire_foreign {
    ($schema:ty: $($own:ty => $wire:ty, of $other:ty;)*) => {$(
        impl $crate::Wire<$wire, $schema> for $own {
            fn to_wire(&self) -> $wire {
                <$other as $crate::Schema>::to_wire(self)
            }

            fn of_wire(
                wire: $wire,
                detacher: $crate::Detacher,
            ) -> Result<Self, $crate::WireError> {
                $crate::Wire::<$wire, $other>::of_wire(wire, detacher)
            }
        }
    )*};
}

macro_rules! plain {
    ($($own:ty),*) => {$(
        impl<S> Wire<$own, S> for $own {
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

impl<S> Wire<String, S> for Arc<str> {
    fn to_wire(&self) -> String {
        String::from(&**self)
    }

    fn of_wire(wire: String, _: Detacher) -> Result<Self, WireError> {
        Ok(wire.into())
    }
}

impl<S> Wire<Bytes, S> for Bytes {
    fn to_wire(&self) -> Bytes {
        self.clone()
    }

    fn of_wire(wire: Bytes, detacher: Detacher) -> Result<Self, WireError> {
        Ok(detacher.detach_field(wire))
    }
}

impl<P, S, T: Wire<P, S>> Wire<Option<P>, S> for Option<T> {
    fn to_wire(&self) -> Option<P> {
        self.as_ref().map(T::to_wire)
    }

    fn of_wire(wire: Option<P>, detacher: Detacher) -> Result<Self, WireError> {
        wire.map(|wire| T::of_wire(wire, detacher)).transpose()
    }
}

impl<P, S, T: Wire<P, S>> Wire<Vec<P>, S> for Vec<T> {
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
        impl<P, S, T: Wire<P, S>> Wire<P, S> for $pointer<T> {
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
impl<S> Wire<Bytes, S> for Vec<u32> {
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
impl<S> Wire<Bytes, S> for Vec<u16> {
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

/// A set of integers: for each run how far it begins after the one before, and how long it is.
///
/// # Errors
/// For runs that are out of order.
pub fn get_runs(gaps: &[u64]) -> Result<Runs, WireError> {
    Runs::from_gaps(gaps).map_err(|value| WireError::Range { column: "", value })
}

/// Ids of workers, or partitions.
impl<S> Wire<Vec<u64>, S> for Runs {
    fn to_wire(&self) -> Vec<u64> {
        self.gaps().collect()
    }

    fn of_wire(wire: Vec<u64>, _: Detacher) -> Result<Self, WireError> {
        let runs = get_runs(&wire)?;
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
