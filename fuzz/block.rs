//! The decoders of batches of rows, for their fuzz target and for the test that replays the corpus.

use treadle_shuffle::ReadPiece;
use treadle_shuffle::block::{Header, Table};

/// A header, and the table behind it. What was read fits its header, and is written again as it was.
pub fn block(bytes: &[u8]) {
    let Ok(header) = Header::decode(bytes) else {
        return;
    };
    let again = header.encode();
    assert_eq!(again[..], bytes[..again.len()]);
    let rest = &bytes[again.len()..];
    let length = header.table_length().min(rest.len() as u64) as usize;
    let table = rest[..length].to_vec();
    let Ok(table) = Table::new(&header, table.into()) else {
        return;
    };
    assert_eq!(table.len(), header.pieces as usize);
    let (mut sum, mut stored) = (0, 0);
    for piece in table.pieces() {
        assert_eq!(piece.offset, stored);
        assert_eq!(table.find(piece.partition), Some(piece));
        let read = ReadPiece::new(header.batch, &piece);
        assert!(read.packed == 0 || u64::from(read.packed) < piece.tally.bytes);
        sum += piece.tally.bytes;
        stored += read.stored();
    }
    assert_eq!((sum, stored), (header.tally.bytes, header.stored()));
}
