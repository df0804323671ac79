//! Python objects as frames of bytes, and back.
//!
//! | module | what |
//! | --- | --- |
//! | `encode`, `decode` | objects to frames and back |
//! | `apart` | which buffers of a pickle are frames of their own |
//! | `array` | arrays of NumPy, and of libraries whose memory it can view |
//! | `buffer` | memory of Python objects that is being sent or received into |
//! | `memory` | received memory that Python uses |
//! | `foreign` | memory of other libraries' objects, as a buffer |

mod apart;
mod array;
mod buffer;
mod decode;
mod encode;
mod foreign;
mod memory;

pub use apart::Apart;
pub use array::{Destination, is_array};
pub use buffer::{ExportedBuffer, release_all, stop_releasing};
pub use decode::{decode, decode_own, decode_parts, decode_value, memories};
pub use encode::{BYTES, Encoded, PICKLE, encode, encode_as_array, encode_view};
pub use foreign::ForeignMemory;
pub use memory::Memory;

pyo3::import_exception!(treadle.transfer._errors, CorruptData);
