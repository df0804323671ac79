//! The numbers by which receivers know objects.

use treadle_broadcast_wire::{NEIGHBOUR, RELAYED};
use treadle_messages::Data;
use treadle_shuffle_wire::{FROM_SERVER, TO_SERVER};

/// The kind of the object with which a node introduces itself.
pub const HELLO: u32 = 16;
/// The kind of the scheduler's answer.
pub const WELCOME: u32 = 17;
/// The kind of every object after that.
pub const MESSAGES: u32 = 18;

/// The kinds of all planes. A worker has one listener, and the first object of a connection says whose it is.
const KINDS: [u32; 13] = [
    Data::GET,
    Data::VALUE,
    Data::NO_VALUE,
    Data::UNSERIALISABLE,
    Data::PUT,
    Data::TAKEN,
    NEIGHBOUR,
    RELAYED,
    TO_SERVER,
    FROM_SERVER,
    HELLO,
    WELCOME,
    MESSAGES,
];

const _: () = {
    let mut one = 0;
    while one < KINDS.len() {
        let mut other = one + 1;
        while other < KINDS.len() {
            assert!(KINDS[one] != KINDS[other], "two kinds have the same number");
            other += 1;
        }
        one += 1;
    }
};
