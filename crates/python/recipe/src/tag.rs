//! The tags of recipes, above those of plain values (`treadle_types::value::tag`).
//!
//! A recipe is one expression. A plain value is one, written as `treadle_types::value` writes it,
//! but its items may be any expressions. Numbers are varints; *definition* is the number of one.
//! A task has a list of *locals*, empty at first, to which two tags append.

use treadle_types::value::TAG_RECIPE;

/// `number`: the value of an input, by its position among the task's inputs.
pub(crate) const INPUT: u8 = TAG_RECIPE;
/// `number`: a local.
pub(crate) const LOCAL: u8 = TAG_RECIPE + 1;
/// `number`: a local that is read for the last time, and let go.
pub(crate) const LAST: u8 = TAG_RECIPE + 2;
/// `expression`: its value, which also becomes the next local: the task refers to one object from
/// several places.
pub(crate) const KEEP: u8 = TAG_RECIPE + 3;
/// `count, that many expressions, expression`: each of the first becomes the next local; the last
/// one is the value. This is what a fused task becomes, in the order in which it is to run.
pub(crate) const PROGRAM: u8 = TAG_RECIPE + 4;
/// `definition`: the object.
pub(crate) const DEFINITION: u8 = TAG_RECIPE + 5;
/// `definition, count, that many expressions`: calls the object with them.
pub(crate) const CALL: u8 = TAG_RECIPE + 6;
/// `definition, definition, count, that many expressions`: likewise; the second definition is the
/// tuple of names of the keyword arguments, which come last and are included in the count.
pub(crate) const CALL_NAMED: u8 = TAG_RECIPE + 7;
/// `expression, definition of the names plus one or 0, count, that many expressions`: a call of
/// whatever the first expression is.
pub(crate) const APPLY: u8 = TAG_RECIPE + 8;
/// `start, stop, step`: a slice of three expressions.
pub(crate) const SLICE: u8 = TAG_RECIPE + 9;
/// `count, that many expressions`
pub(crate) const SET: u8 = TAG_RECIPE + 10;
/// `count, that many expressions`
pub(crate) const FROZENSET: u8 = TAG_RECIPE + 11;
/// `...`
pub(crate) const ELLIPSIS: u8 = TAG_RECIPE + 12;
/// `expression, count, that many pairs of a key and an expression`: the first is a node of a class
/// of its own, called with a dictionary of values by key.
pub(crate) const CUSTOM: u8 = TAG_RECIPE + 13;

/// `number`: the value of an input, made anew: an object that this task alone has.
pub(crate) const OWN: u8 = TAG_RECIPE + 16;
/// `count, that many numbers, expression`: the inputs that only [`OWN`] reads. In front of a recipe.
pub(crate) const OWNED: u8 = TAG_RECIPE + 17;

// What only tokens have; see `token`.

/// `length, text`: the token of an object that is not plain.
pub(crate) const TOKEN: u8 = TAG_RECIPE + 14;
/// `key, value`: a reference to a key, and which one it is.
pub(crate) const REFERENCE: u8 = TAG_RECIPE + 15;
