#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| treadle_node_service::fuzzing::service(bytes));
