//! How values stand in columns: each kind of value is declared once, and written, read and measured
//! by that declaration.

use alloc::vec::Vec;
use core::marker::PhantomData;
use core::ops::Deref;
use core::time::Duration;

use bytes::Bytes;
use smallvec::SmallVec;
use treadle_types::{Attempt, ClientId, ObjectId, TaskId, WorkerId};

use crate::{Cells, Column, Columns, Detacher, Kept, MOST_LISTED, Rows, WireError, at_most};

/// Values of one kind in columns. What reads is always inlined: otherwise each part of a message is
/// moved several times. Reading an assignment with two inputs took 178 ns then, and takes 121 ns so
/// (`crates/schedule/wire/examples/wire_nanoseconds.rs`).
pub trait Codec {
    type Value;
    /// The columns of values that are written.
    type Columns: Columns;
    /// The columns of values that are read.
    type Rows: Rows;

    /// Appends a value.
    fn put(columns: &mut Self::Columns, value: &Self::Value);

    /// The next value.
    ///
    /// # Errors
    /// When the columns end before it does, or for what has no meaning.
    fn get(rows: &mut Self::Rows) -> Result<Self::Value, WireError>;

    /// An upper bound of what a value adds, in bytes.
    fn cost(value: &Self::Value) -> usize;
}

/// The columns of a codec, to be written.
pub struct Writer<C: Codec>(C::Columns);

impl<C: Codec> Default for Writer<C> {
    fn default() -> Self {
        Self(C::Columns::default())
    }
}

impl<C: Codec> Writer<C> {
    /// Appends a value.
    #[inline]
    pub fn put(&mut self, value: &C::Value) {
        C::put(&mut self.0, value);
    }
}

/// The cost of a value in the columns that a field of `R` has.
#[inline]
pub fn cost_in<R, C: Codec>(_: fn(&R) -> &Writer<C>, value: &C::Value) -> usize {
    C::cost(value)
}

impl<C: Codec> Columns for Writer<C> {
    fn each(&mut self, act: &mut impl FnMut(&mut Column)) {
        self.0.each(act);
    }
}

/// The columns of a codec, to be read.
pub struct Reader<C: Codec>(C::Rows);

impl<C: Codec> Reader<C> {
    /// The next value.
    ///
    /// # Errors
    /// As [`Codec::get`].
    #[inline(always)]
    pub fn get(&mut self) -> Result<C::Value, WireError> {
        C::get(&mut self.0)
    }
}

impl<C: Codec> Rows for Reader<C> {
    fn new(columns: &mut impl Iterator<Item = (&'static str, Bytes)>, detacher: Detacher) -> Self {
        Self(C::Rows::new(columns, detacher))
    }

    fn end(&self) -> Result<(), WireError> {
        self.0.end()
    }
}

/// What stands in a column as an integer.
pub trait Number: Sized {
    /// The most bytes that one takes, as it is or as a difference.
    const LONGEST: usize;

    /// As an integer.
    fn to_number(&self) -> u64;

    /// The inverse; `None`: the integer has no meaning.
    fn of_number(number: u64) -> Option<Self>;
}

macro_rules! numbers {
    ($($own:ty, $longest:literal: $value:ident => $to:expr, $of:expr;)*) => {$(
        impl Number for $own {
            const LONGEST: usize = $longest;

            #[inline]
            fn to_number(&self) -> u64 {
                let $value = self;
                $to
            }

            #[inline]
            fn of_number($value: u64) -> Option<Self> {
                $of
            }
        }
    )*};
}

numbers! {
    u32, 5: n => (*n).into(), n.try_into().ok();
    u64, 10: n => *n, Some(n);
    TaskId, 5: id => id.0.into(), id.try_into().ok().map(Self);
    Attempt, 5: attempt => attempt.0.into(), attempt.try_into().ok().map(Self);
    ClientId, 5: id => id.0.into(), id.try_into().ok().map(Self);
    WorkerId, 5: id => id.0.into(), id.try_into().ok().map(Self);
    // As a difference only.
    i32, 5: n => i64::from(*n) as u64, (n as i64).try_into().ok();
    bool, 1: flag => (*flag).into(), (flag < 2).then_some(flag == 1);
    // 0 for none, otherwise one more than the id.
    Option<WorkerId>, 5: id => id.map_or(0, |id| 1 + u64::from(id.0)), match id {
        0 => Some(None),
        id => WorkerId::of_number(id - 1).map(Some),
    };
    // In nanoseconds; 584 years are enough.
    Duration, 10: time => u64::try_from(time.as_nanos()).unwrap_or(u64::MAX),
        Some(Self::from_nanos(time));
}

/// An integer as it is.
pub struct Varint<T>(PhantomData<T>);

impl<T: Number> Codec for Varint<T> {
    type Value = T;
    type Columns = Column;
    type Rows = Cells;

    #[inline]
    fn put(column: &mut Column, value: &T) {
        column.put(value.to_number());
    }

    #[inline(always)]
    fn get(cells: &mut Cells) -> Result<T, WireError> {
        let number = cells.get()?;
        T::of_number(number).ok_or_else(|| cells.range(number))
    }

    #[inline]
    fn cost(_: &T) -> usize {
        T::LONGEST
    }
}

/// An integer as its difference from the one before.
pub struct Delta<T>(PhantomData<T>);

impl<T: Number> Codec for Delta<T> {
    type Value = T;
    type Columns = Column;
    type Rows = Cells;

    #[inline]
    fn put(column: &mut Column, value: &T) {
        column.put_delta(value.to_number());
    }

    #[inline(always)]
    fn get(cells: &mut Cells) -> Result<T, WireError> {
        let number = cells.get_delta()?;
        T::of_number(number).ok_or_else(|| cells.range(number))
    }

    #[inline]
    fn cost(_: &T) -> usize {
        T::LONGEST
    }
}

/// An integer that mostly is 0.
pub struct Sparse<T>(PhantomData<T>);

impl<T: Number> Codec for Sparse<T> {
    type Value = T;
    type Columns = Column;
    type Rows = Cells;

    #[inline]
    fn put(column: &mut Column, value: &T) {
        column.put_sparse(value.to_number());
    }

    #[inline(always)]
    fn get(cells: &mut Cells) -> Result<T, WireError> {
        let number = cells.get_sparse()?;
        T::of_number(number).ok_or_else(|| cells.range(number))
    }

    #[inline]
    fn cost(_: &T) -> usize {
        // With the number of zeros before it.
        5 + T::LONGEST
    }
}

/// A column of pieces, whose lengths are in another one.
pub trait Pieces: Rows {
    /// The next piece, of so many bytes.
    ///
    /// # Errors
    /// When the column ends before it does.
    fn piece(&mut self, length: u64) -> Result<Bytes, WireError>;
}

/// Pieces are views of the packet: for what is used up soon.
impl Pieces for Cells {
    #[inline(always)]
    fn piece(&mut self, length: u64) -> Result<Bytes, WireError> {
        self.slice(length)
    }
}

/// Pieces may stay for long.
impl Pieces for Kept {
    #[inline(always)]
    fn piece(&mut self, length: u64) -> Result<Bytes, WireError> {
        self.next(length)
    }
}

/// Bytes.
pub struct Blob<P>(PhantomData<P>);

impl<P: Pieces> Codec for Blob<P> {
    type Value = Bytes;
    type Columns = (Column, Column);
    type Rows = (Cells, P);

    #[inline]
    fn put((lengths, pieces): &mut Self::Columns, value: &Bytes) {
        lengths.put(value.len() as u64);
        pieces.put_bytes(value);
    }

    #[inline(always)]
    fn get((lengths, pieces): &mut Self::Rows) -> Result<Bytes, WireError> {
        let length = lengths.get()?;
        pieces.piece(length)
    }

    #[inline]
    fn cost(value: &Bytes) -> usize {
        5 + value.len()
    }
}

/// Bytes, if there are any: a length of 0 says that there are none, others are one more.
pub struct OptionalBytes;

impl Codec for OptionalBytes {
    type Value = Option<Bytes>;
    type Columns = (Column, Column);
    type Rows = (Cells, Kept);

    #[inline]
    fn put((lengths, pieces): &mut Self::Columns, value: &Option<Bytes>) {
        let Some(value) = value else {
            return lengths.put(0);
        };
        lengths.put(1 + value.len() as u64);
        pieces.put_bytes(value);
    }

    #[inline(always)]
    fn get((lengths, pieces): &mut Self::Rows) -> Result<Option<Bytes>, WireError> {
        match lengths.get()? {
            0 => Ok(None),
            length => pieces.next(length - 1).map(Some),
        }
    }

    #[inline]
    fn cost(value: &Option<Bytes>) -> usize {
        5 + value.as_ref().map_or(0, Bytes::len)
    }
}

/// The name of a type, which often is the one before: 0 says that there is none, 1 that it is the
/// same as before, others are its length and 1.
pub struct Class;

impl Codec for Class {
    type Value = Bytes;
    type Columns = (Column, Column);
    type Rows = (Cells, Kept, Bytes);

    #[inline]
    fn put((lengths, pieces): &mut Self::Columns, class: &Bytes) {
        if class.is_empty() {
            lengths.put(0);
        } else if pieces.put_new_bytes(class) {
            lengths.put(1 + class.len() as u64);
        } else {
            lengths.put(1);
        }
    }

    #[inline(always)]
    fn get((lengths, pieces, before): &mut Self::Rows) -> Result<Bytes, WireError> {
        match lengths.get()? {
            0 => return Ok(Bytes::new()),
            1 => {}
            length => *before = pieces.next(length - 1)?,
        }
        Ok(before.clone())
    }

    #[inline]
    fn cost(class: &Bytes) -> usize {
        5 + class.len()
    }
}

/// What values are read into, one after another.
pub trait Push<T>: Default + Deref<Target = [T]> {
    /// Appends a value.
    fn push(&mut self, value: T);
}

impl<T> Push<T> for Vec<T> {
    #[inline]
    fn push(&mut self, value: T) {
        self.push(value);
    }
}

impl<A: smallvec::Array> Push<A::Item> for SmallVec<A> {
    #[inline]
    fn push(&mut self, value: A::Item) {
        self.push(value);
    }
}

/// Several values: how many, and each.
pub struct List<C, L>(PhantomData<(C, L)>);

impl<C, L> Codec for List<C, L>
where
    C: Codec,
    L: Push<C::Value>,
{
    type Value = L;
    type Columns = (Column, C::Columns);
    type Rows = (Cells, C::Rows);

    #[inline]
    fn put((counts, columns): &mut Self::Columns, values: &L) {
        counts.put(values.len() as u64);
        for value in &**values {
            C::put(columns, value);
        }
    }

    #[inline(always)]
    fn get((counts, rows): &mut Self::Rows) -> Result<L, WireError> {
        let mut values = L::default();
        // A false count allocates nothing, and ends with the columns: each value takes a byte at
        // least.
        for _ in 0..counts.get()? {
            values.push(C::get(rows)?);
        }
        Ok(values)
    }

    #[inline]
    fn cost(values: &L) -> usize {
        5 + values.iter().map(C::cost).sum::<usize>()
    }
}

/// Declares the codec of a type whose fields each have columns of their own.
#[macro_export]
macro_rules! columns_of_struct {
    ($(#[$doc:meta])* $vis:vis $codec:ident: $own:ident { $($field:ident: $kind:ty),* $(,)? }) => {
        $(#[$doc])*
        $vis struct $codec;

        impl $crate::Codec for $codec {
            type Value = $own;
            type Columns = ($(<$kind as $crate::Codec>::Columns,)*);
            type Rows = ($(<$kind as $crate::Codec>::Rows,)*);

            #[inline]
            fn put(($($field,)*): &mut Self::Columns, value: &$own) {
                $(<$kind as $crate::Codec>::put($field, &value.$field);)*
            }

            #[inline(always)]
            fn get(($($field,)*): &mut Self::Rows) -> Result<$own, $crate::WireError> {
                Ok($own { $($field: <$kind as $crate::Codec>::get($field)?),* })
            }

            #[inline]
            fn cost(value: &$own) -> usize {
                0 $(+ <$kind as $crate::Codec>::cost(&value.$field))*
            }
        }
    };
}

/// Declares the codec of a type that is a name for another: as that one.
#[macro_export]
macro_rules! columns_of_newtype {
    ($($(#[$doc:meta])* $vis:vis $codec:ident: $own:ident($kind:ty);)*) => {$(
        $(#[$doc])*
        $vis struct $codec;

        impl $crate::Codec for $codec {
            type Value = $own;
            type Columns = <$kind as $crate::Codec>::Columns;
            type Rows = <$kind as $crate::Codec>::Rows;

            #[inline]
            fn put(columns: &mut Self::Columns, value: &$own) {
                <$kind as $crate::Codec>::put(columns, &value.0);
            }

            #[inline(always)]
            fn get(rows: &mut Self::Rows) -> Result<$own, $crate::WireError> {
                <$kind as $crate::Codec>::get(rows).map($own)
            }

            #[inline]
            fn cost(value: &$own) -> usize {
                <$kind as $crate::Codec>::cost(&value.0)
            }
        }
    )*};
}

/// Declares messages that share columns: for each kind its number, what it looks like, and which of
/// its fields are in which columns. `$row` is what is written, and `$value` what is read, which looks
/// the same unless `=>` says how.
#[macro_export]
macro_rules! columns_of_enum {
    (
        $(#[$doc:meta])*
        $vis:vis $columns:ident, $rows:ident: $row:ty => $value:ty;
        columns { $($column:ident: $kind:ty),* $(,)? }
        kinds { $($number:literal: ($($shape:tt)*) [$($field:ident),*] $(=> $get:expr)?),* $(,)? }
    ) => {
        $(#[$doc])*
        #[derive(Default)]
        $vis struct $columns {
            kinds: $crate::Column,
            $($column: $crate::Writer<$kind>,)*
        }

        impl $columns {
            #[inline]
            pub(crate) fn put(&mut self, row: $row) {
                match row {
                    $($($shape)* => {
                        self.kinds.put($number);
                        $(self.$field.put($field);)*
                    })*
                    #[allow(unreachable_patterns, reason = "some have kinds without columns")]
                    _ => unreachable!("it is a message of its own"),
                }
            }

            /// An upper bound of what a row adds, in bytes.
            #[inline]
            pub(crate) fn cost(row: $row) -> usize {
                match row {
                    $($($shape)* => 1 $(+ $crate::cost_in(|columns: &$columns| &columns.$field, $field))*,)*
                    #[allow(unreachable_patterns, reason = "some have kinds without columns")]
                    _ => 0,
                }
            }
        }

        impl $crate::Columns for $columns {
            fn each(&mut self, act: &mut impl FnMut(&mut $crate::Column)) {
                act(&mut self.kinds);
                $($crate::Columns::each(&mut self.$column, act);)*
            }
        }

        $vis struct $rows {
            pub(crate) kinds: $crate::Cells,
            $($column: $crate::Reader<$kind>,)*
        }

        impl $rows {
            #[inline(always)]
            pub(crate) fn get(&mut self) -> Result<$value, $crate::WireError> {
                Ok(match self.kinds.get()? {
                    $($number => {
                        $(let $field = self.$field.get()?;)*
                        $crate::columns_of_enum!(@get ($($shape)*) $($get)?)
                    })*
                    kind => return Err(self.kinds.range(kind)),
                })
            }
        }

        impl $crate::Rows for $rows {
            fn new(
                columns: &mut impl Iterator<Item = (&'static str, $crate::Bytes)>,
                detacher: $crate::Detacher,
            ) -> Self {
                Self {
                    kinds: $crate::Rows::new(columns, detacher),
                    $($column: $crate::Rows::new(columns, detacher),)*
                }
            }

            fn end(&self) -> Result<(), $crate::WireError> {
                $crate::Rows::end(&self.kinds)?;
                $($crate::Rows::end(&self.$column)?;)*
                Ok(())
            }
        }
    };
    (@get ($($shape:tt)*)) => { $($shape)* };
    (@get ($($shape:tt)*) $get:expr) => { $get };
}

/// Declares lists that are columns within one message, each with its name in the schema.
#[macro_export]
macro_rules! wire_columns {
    ($schema:ty: $($codec:ident: $own:ty => $wire:ident::$message:ident { $($name:ident),* $(,)? };)*) => {$(
        impl $crate::Wire<Option<$wire::$message>, $schema> for Vec<$own> {
            fn to_wire(&self) -> Option<$wire::$message> {
                let mut written = $crate::put_list::<$codec>(self).into_iter();
                Some($wire::$message {
                    count: self.len() as u32,
                    $($name: written.next().unwrap_or_default()),*
                })
            }

            fn of_wire(
                wire: Option<$wire::$message>,
                detacher: $crate::Detacher,
            ) -> Result<Self, $crate::WireError> {
                let wire = wire.ok_or($crate::WireError::Missing(stringify!($message)))?;
                let columns = [$((stringify!($name), wire.$name)),*];
                $crate::get_list::<$codec>(wire.count, columns, detacher)
            }
        }
    )*};
}

/// Values of a list that get their memory before they are read, at most.
const MOST_RESERVED: usize = 1 << 13;

/// Values as columns of their own, in order.
pub fn put_list<C: Codec>(values: &[C::Value]) -> Vec<Bytes> {
    let mut columns = C::Columns::default();
    // Most take a byte.
    columns.each(&mut |column| column.reserve(values.len()));
    for value in values {
        C::put(&mut columns, value);
    }
    let mut written = Vec::new();
    columns.each(&mut |column| written.push(core::mem::take(column).into_bytes()));
    written
}

/// So many values of columns, which are given with their names, in order.
///
/// # Errors
/// For too many values, and where the columns have others, or another number of them.
pub fn get_list<C: Codec>(
    count: u32,
    columns: impl IntoIterator<Item = (&'static str, Bytes)>,
    detacher: Detacher,
) -> Result<Vec<C::Value>, WireError> {
    at_most("", count.into(), MOST_LISTED)?;
    let mut columns = columns.into_iter().peekable();
    let first = columns.peek().map_or(0, |(_, bytes)| bytes.len());
    let mut rows = C::Rows::new(&mut columns, detacher);
    // A false count allocates little, and ends with the columns.
    let mut values = Vec::with_capacity((count as usize).min(first).min(MOST_RESERVED));
    for _ in 0..count {
        values.push(C::get(&mut rows)?);
    }
    rows.end()?;
    Ok(values)
}

columns_of_struct! {
    /// An [`ObjectId`].
    pub Object: ObjectId { task: Delta<TaskId>, attempt: Delta<Attempt> }
}

/// An [`ObjectId`] where messages say it as [`ObjectId::to_u64`].
pub struct ObjectNumber;

impl Codec for ObjectNumber {
    type Value = u64;
    type Columns = <Object as Codec>::Columns;
    type Rows = <Object as Codec>::Rows;

    #[inline]
    fn put(columns: &mut Self::Columns, number: &u64) {
        Object::put(columns, &ObjectId::from_u64(*number));
    }

    #[inline(always)]
    fn get(rows: &mut Self::Rows) -> Result<u64, WireError> {
        Object::get(rows).map(ObjectId::to_u64)
    }

    #[inline]
    fn cost(number: &u64) -> usize {
        Object::cost(&ObjectId::from_u64(*number))
    }
}
