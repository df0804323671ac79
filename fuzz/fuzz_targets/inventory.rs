#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| treadle_shuffle_wire::fuzzing::inventory(bytes));
