//! How messages of any plane become bytes.
//!
//! Each plane declares its messages in `proto/`, and has a crate with a line for each of them: the conversion
//! between the core's type and the generated one. What these lines mean is declared here, once. The crate knows
//! no message, and no plane.
//!
//! | module | what |
//! | --- | --- |
//! | `schema` | [`Wire`]: types beside generated ones, field by field |
//! | `codec` | [`Codec`]: how values stand in columns |
//! | `column` | a column as bytes, and lists that are columns |
//! | `keep` | what outlives a packet, and what is copied out of it |
//! | `wire_error` | bytes that are no messages |
//!
//! The crate is pure: no IO, clock, threads or randomness.

#![no_std]

extern crate alloc;

mod codec;
mod column;
mod keep;
mod schema;
mod wire_error;

#[doc(hidden)]
pub use bytes::Bytes;
pub use codec::{
    Blob, Class, Codec, Delta, List, Number, Object, ObjectNumber, OptionalBytes, Pieces, Push,
    Reader, Sparse, Varint, Writer, cost_in, get_list, put_list,
};
pub use column::{
    Cells, Column, Columns, MOST, MOST_LISTED, Rows, at_most, get_all, head, put_all,
};
pub use keep::{Detacher, Kept};
pub use schema::{Schema, Wire, get_runs};
pub use wire_error::WireError;

/// Includes generated types.
#[macro_export]
macro_rules! generated {
    ($(#[$doc:meta])* $name:ident, $package:literal) => {
        $(#[$doc])*
        #[allow(unreachable_pub, dead_code, clippy::all)]
        pub mod $name {
            include!(concat!(env!("OUT_DIR"), "/treadle.", $package, ".rs"));
        }
    };
}
