//! The decoders of batches of rows, for their fuzz target and for the test that replays the corpus.

use treadle_shuffle::block::{Header, Table};

/// A header, and the table behind it. What was read fits its header, and is written again as it was.
pub fn block(bytes: &[u8]) {
    let Ok(header) = Header::decode(bytes) else {
        return;
    };
    let again = header.encode();
    // The last word of a header is not read.
    assert_eq!(again[..76], bytes[..76]);
    let rest = &bytes[again.len()..];
    let length = header.table_length().min(rest.len() as u64) as usize;
    let table = rest[..length].to_vec();
    let Ok(table) = Table::new(&header, table.into()) else {
        return;
    };
    assert_eq!(table.len(), header.pieces as usize);
    let mut sum = 0;
    for piece in table.pieces() {
        assert_eq!(piece.offset, sum);
        assert_eq!(table.find(piece.partition), Some(piece));
        sum += piece.tally.bytes;
    }
    assert_eq!(sum, header.tally.bytes);
}
