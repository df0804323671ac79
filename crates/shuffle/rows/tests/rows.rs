//! Rows that were gathered and joined, beside the same done in the simplest way.

use proptest::prelude::*;
use treadle_rows::{
    Arenas, Batch, Column, ColumnMut, Field, Format, Input, Integer, Partitions, RowsError, Wanted,
    digest, fill, scan,
};
use treadle_shuffle::block::{HEADER, Header, Table};
use treadle_shuffle::{AttemptId, Generation, RowDigest, ShuffleId, Transfer};
use treadle_types::Runs;

const SHUFFLE: ShuffleId = ShuffleId(7);
const TRANSFER: Transfer = Transfer {
    shuffle: SHUFFLE,
    map: 3,
    attempt: AttemptId(11),
};

/// The values of one field.
#[derive(Clone, Debug)]
enum Values {
    Fixed(usize, Vec<Vec<u8>>),
    Bytes(Vec<Option<Vec<u8>>>),
}

/// A column's memory: fixed values with a gap after each, bytes as Arrow has them.
struct Memory {
    fixed: Vec<u8>,
    stride: usize,
    offsets: Vec<u8>,
    data: Vec<u8>,
    nulls: Vec<u8>,
}

fn memory(values: &Values, gap: usize) -> Memory {
    let mut memory = Memory {
        fixed: Vec::new(),
        stride: 0,
        offsets: 5_i64.to_ne_bytes().to_vec(),
        data: b"before".to_vec()[..5].to_vec(),
        nulls: Vec::new(),
    };
    match values {
        Values::Fixed(width, rows) => {
            memory.stride = width + gap;
            for row in rows {
                memory.fixed.extend(row);
                memory.fixed.extend(vec![0xee; gap]);
            }
            memory
                .fixed
                .truncate(memory.fixed.len().saturating_sub(gap));
        }
        Values::Bytes(rows) => {
            for row in rows {
                memory.nulls.push(u8::from(row.is_none()));
                memory.data.extend(row.iter().flatten());
                memory
                    .offsets
                    .extend((memory.data.len() as i64).to_ne_bytes());
            }
        }
    }
    memory
}

fn column<'a>(values: &Values, memory: &'a Memory) -> Column<'a> {
    match values {
        Values::Fixed(width, _) => Column::Fixed {
            bytes: &memory.fixed,
            stride: memory.stride,
            width: *width,
        },
        Values::Bytes(_) => Column::Bytes {
            offsets: &memory.offsets,
            data: &memory.data,
            nulls: Some(&memory.nulls),
        },
    }
}

/// The values of some rows, in the order given.
fn taken(values: &Values, rows: &[usize]) -> Values {
    match values {
        Values::Fixed(width, all) => {
            Values::Fixed(*width, rows.iter().map(|&row| all[row].clone()).collect())
        }
        Values::Bytes(all) => Values::Bytes(rows.iter().map(|&row| all[row].clone()).collect()),
    }
}

fn fields(values: &[Values]) -> Vec<Field> {
    let field = |values: &Values| match values {
        Values::Fixed(width, _) => Field::Fixed(*width),
        Values::Bytes(_) => Field::Bytes,
    };
    values.iter().map(field).collect()
}

fn numbers(partitions: &[u32], count: u32) -> Partitions {
    let bytes: Vec<u8> = partitions
        .iter()
        .flat_map(|&p| i64::from(p).to_ne_bytes())
        .collect();
    Partitions::read(&bytes, 8, Integer::I64, partitions.len(), count).unwrap()
}

/// Arenas that were full of something else, and the batches in them.
fn gather(input: Input<'_>, groups: &[Wanted], target: usize) -> (Vec<Vec<u8>>, Vec<Vec<Batch>>) {
    let arenas = Arenas::with_target(input, groups, target).unwrap();
    let mut memory: Vec<Vec<u8>> = arenas.lengths().iter().map(|&n| vec![0xab; n]).collect();
    let mut slices: Vec<&mut [u8]> = memory.iter_mut().map(Vec::as_mut_slice).collect();
    let batches = arenas.fill(SHUFFLE, TRANSFER, &mut slices).unwrap();
    (memory, batches)
}

/// The pieces of a partition in an arena, whose headers, tables and digests are right.
fn pieces<'a>(arena: &'a [u8], batches: &[Batch], partition: u32, width: usize) -> Vec<&'a [u8]> {
    let mut found = Vec::new();
    for (number, batch) in (0..).zip(batches) {
        let bytes = &arena[batch.offset..][..batch.header.length() as usize];
        let header = Header::decode(bytes).unwrap();
        assert_eq!(header, batch.header);
        assert_eq!(batch.offset % 64, 0);
        assert_eq!((header.batch.map, header.batch.attempt), (3, AttemptId(11)));
        assert_eq!(header.batch.number, number);
        let table_end = HEADER + header.table_length() as usize;
        let table = bytes[HEADER..table_end].to_vec();
        let table = Table::new(&header, table.into()).unwrap();
        let rows = &bytes[header.rows_offset() as usize..];
        assert!(
            bytes[table_end..header.rows_offset() as usize]
                .iter()
                .all(|&b| b == 0)
        );
        if let Some(piece) = table.find(partition) {
            let bytes = &rows[piece.offset as usize..][..piece.tally.bytes as usize];
            let sum = digest(width, RowDigest::new(3, partition), bytes).unwrap();
            assert_eq!(sum & 0xffff_ffff, piece.tally.digest);
            found.push(bytes);
        }
    }
    found
}

/// The values of pieces.
fn join(format: &Format, pieces: &[&[u8]]) -> (Vec<Values>, Vec<Vec<u8>>) {
    let joined = scan(format, pieces).unwrap();
    let rows = joined.rows;
    let mut lengths = joined.bytes.iter();
    let mut fixed: Vec<Vec<u8>> = Vec::new();
    let mut offsets = Vec::new();
    let mut nulls = Vec::new();
    for field in format.fields() {
        let width = match field {
            Field::Fixed(width) => *width * rows,
            Field::Bytes => *lengths.next().unwrap(),
        };
        fixed.push(vec![0xcd; width]);
        offsets.push(vec![0xcd; 8 * (rows + 1)]);
        nulls.push(vec![0xcd; rows]);
    }
    let memory = fixed.iter_mut().zip(&mut offsets).zip(&mut nulls);
    let mut columns: Vec<ColumnMut<'_>> = format
        .fields()
        .iter()
        .zip(memory)
        .map(|(field, ((data, offsets), nulls))| match field {
            Field::Fixed(width) => ColumnMut::Fixed {
                bytes: data,
                width: *width,
            },
            Field::Bytes => ColumnMut::Bytes {
                offsets,
                data,
                nulls,
            },
        })
        .collect();
    fill(format, pieces, &mut columns).unwrap();
    let values = columns.iter().map(|column| match column {
        ColumnMut::Fixed { bytes, width } => {
            Values::Fixed(*width, bytes.chunks(*width).map(<[u8]>::to_vec).collect())
        }
        ColumnMut::Bytes {
            offsets,
            data,
            nulls,
        } => {
            let column = Column::Bytes {
                offsets,
                data,
                nulls: Some(nulls),
            };
            let Column::Bytes { offsets, .. } = column else {
                unreachable!()
            };
            let end = |row: usize| {
                i64::from_ne_bytes(offsets[8 * row..][..8].try_into().unwrap()) as usize
            };
            Values::Bytes(
                (0..rows)
                    .map(|row| (nulls[row] == 0).then(|| data[end(row)..end(row + 1)].to_vec()))
                    .collect(),
            )
        }
    });
    let notes = joined.notes.iter();
    let notes = notes.map(|note| pieces[note.piece][note.bytes.clone()].to_vec());
    (values.collect(), notes.collect())
}

fn table() -> impl Strategy<Value = (Vec<u32>, Vec<Values>)> {
    (
        0..400_usize,
        prop::collection::vec((0..6_usize, 0..3_usize), 1..6),
    )
        .prop_flat_map(|(rows, kinds)| {
            let columns = kinds.into_iter().map(move |(kind, extra)| {
                let width = [1, 2, 4, 8, 16, 3 + 7 * extra][kind];
                let row = prop::collection::vec(any::<u8>(), width);
                let fixed = prop::collection::vec(row, rows)
                    .prop_map(move |rows| Values::Fixed(width, rows));
                let value = prop::option::of(prop::collection::vec(any::<u8>(), 0..12));
                let bytes = prop::collection::vec(value, rows).prop_map(Values::Bytes);
                match extra {
                    0 if kind == 5 => bytes.boxed(),
                    _ => fixed.boxed(),
                }
            });
            let partitions = prop::collection::vec(0..9_u32, rows);
            (partitions, columns.collect::<Vec<_>>())
        })
}

/// So long that a block has few of them.
#[test]
fn long_rows_come_back_in_order() {
    let long = (0..120).map(|row| vec![row; 20_000]).collect();
    let text = (0..120).map(|row| Some(vec![row; 3])).collect();
    let fixed = vec![Values::Fixed(20_000, long)];
    let variable = vec![fixed[0].clone(), Values::Bytes(text)];
    for values in [fixed, variable] {
        let memory: Vec<Memory> = values.iter().map(|v| memory(v, 0)).collect();
        let columns = values.iter().zip(&memory).map(|(v, m)| column(v, m));
        let columns: Vec<Column<'_>> = columns.collect();
        let format = Format::new(fields(&values));
        let partitions: Vec<u32> = (0..120).map(|row| row % 2).collect();
        let input = Input {
            format: &format,
            columns: &columns,
            partitions: &numbers(&partitions, 2),
            note: &[],
        };
        let all = [Wanted {
            epoch: Generation(2),
            partitions: Runs::range(0, 2),
        }];
        let (arenas, batches) = gather(input, &all, 4 << 20);
        for partition in 0..2 {
            let rows: Vec<usize> = (partition..120).step_by(2).collect();
            let pieces = pieces(&arenas[0], &batches[0], partition as u32, format.width());
            let (joined, _) = join(&format, &pieces);
            for (joined, values) in joined.iter().zip(&values) {
                assert_eq!(format!("{joined:?}"), format!("{:?}", taken(values, &rows)));
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(192))]

    #[test]
    fn rows_come_back_in_order(
        (partitions, values) in table(),
        gap in 0..3_usize,
        target in prop::sample::select(vec![1_usize, 50, 700, 4 << 20]),
        note in prop::collection::vec(any::<u8>(), 0..20),
        split in 0..10_u64,
    ) {
        let count = 9;
        let memory: Vec<Memory> = values.iter().map(|v| memory(v, gap)).collect();
        let columns: Vec<Column<'_>> =
            values.iter().zip(&memory).map(|(v, m)| column(v, m)).collect();
        let plain = Format::new(fields(&values));
        let format = match note.is_empty() {
            true => plain,
            false => Format::variable(fields(&values), plain.width() + 1),
        };
        let numbers = numbers(&partitions, count);
        let input = Input { format: &format, columns: &columns, partitions: &numbers, note: &note };
        // Partition 8 is not wanted.
        let groups = [Runs::range(0, split.min(8)), Runs::range(split.min(8), 8)].map(
            |partitions| Wanted { epoch: Generation(2), partitions },
        );
        let (arenas, batches) = gather(input, &groups, target);
        for partition in 0..count {
            let group = usize::from(u64::from(partition) >= split.min(8));
            let pieces = pieces(&arenas[group], &batches[group], partition, format.width());
            let rows: Vec<usize> = (0..partitions.len())
                .filter(|&row| partitions[row] == partition && partition < 8)
                .collect();
            let (joined, notes) = join(&format, &pieces);
            for (joined, values) in joined.iter().zip(&values) {
                let expected = taken(values, &rows);
                prop_assert_eq!(format!("{joined:?}"), format!("{expected:?}"));
            }
            let expected = usize::from(!rows.is_empty() && !note.is_empty());
            prop_assert_eq!(notes, vec![note.clone(); expected]);
        }
        // The tally does not depend on how batches are cut, nor on the groups.
        let all = [Wanted { epoch: Generation(5), partitions: Runs::range(0, 8) }];
        let sum = |batches: &[Vec<Batch>]| -> treadle_shuffle::Tally {
            batches.iter().flatten().map(|batch| batch.header.tally).sum()
        };
        let (_, others) = gather(input, &all, 99);
        prop_assert_eq!(sum(&batches), sum(&others));
    }

    #[test]
    fn any_bytes_are_refused_or_taken_without_a_panic(
        (_, values) in table(),
        piece in prop::collection::vec(prop::sample::select(vec![0_u8, 1, 4, 9, 200, 255]), 0..120),
        fixed in any::<bool>(),
    ) {
        let format = match fixed {
            true => Format::new(fields(&values)),
            false => Format::variable(fields(&values), 0),
        };
        let _ = digest(format.width(), RowDigest::new(0, 0), &piece);
        if scan(&format, &[&piece]).is_ok() {
            join(&format, &[&piece]);
        }
    }
}

#[test]
fn a_partition_that_does_not_exist_is_named() {
    let bytes: Vec<u8> = [0_i16, 3, -1, 9]
        .iter()
        .flat_map(|n| n.to_ne_bytes())
        .collect();
    let read = |count| Partitions::read(&bytes, 2, Integer::I16, 4, count);
    let error = |row, value, partitions| {
        Err(RowsError::Partition {
            row,
            value,
            partitions,
        })
    };
    assert_eq!(read(3), error(1, 3, 3));
    assert_eq!(read(10), error(2, -1, 10));
    let unsigned = Partitions::read(&bytes, 2, Integer::U16, 4, 10);
    assert_eq!(unsigned, error(2, 65535, 10));
    assert!(Partitions::read(&bytes, 2, Integer::U16, 5, 1 << 20).is_err());
}

#[test]
fn columns_that_do_not_fit_are_refused() {
    let partitions = numbers(&[0, 1, 0], 2);
    let format = Format::new(vec![Field::Fixed(8)]);
    let try_columns = |columns: &[Column<'_>]| {
        let input = Input {
            format: &format,
            columns,
            partitions: &partitions,
            note: &[],
        };
        Arenas::new(input, &[]).map(drop)
    };
    let fixed = |bytes, stride, width| Column::Fixed {
        bytes,
        stride,
        width,
    };
    assert_eq!(try_columns(&[fixed(&[0; 24], 8, 8)]), Ok(()));
    assert_eq!(try_columns(&[fixed(&[0; 8], 0, 8)]), Ok(()));
    let misfit = Err(RowsError::Column { field: 0, rows: 3 });
    assert_eq!(try_columns(&[fixed(&[0; 23], 8, 8)]), misfit);
    assert_eq!(try_columns(&[fixed(&[0; 24], 4, 4)]), misfit);
    assert_eq!(try_columns(&[]), misfit);
}

#[test]
fn groups_with_a_partition_in_common_are_refused() {
    let partitions = numbers(&[0, 1, 3, 0], 5);
    let format = Format::new(vec![Field::Fixed(8)]);
    let columns = [Column::Fixed {
        bytes: &[0; 32],
        stride: 8,
        width: 8,
    }];
    let input = Input {
        format: &format,
        columns: &columns,
        partitions: &partitions,
        note: &[],
    };
    let with_groups = |groups: &[(u64, u64)]| {
        let groups = groups.iter().map(|&(start, end)| Wanted {
            epoch: Generation(1),
            partitions: Runs::range(start, end),
        });
        Arenas::new(input, &groups.collect::<Vec<_>>()).map(drop)
    };
    let overlap = |partition| Err(RowsError::Overlap { partition });
    assert_eq!(with_groups(&[(0, 2), (2, 5)]), Ok(()));
    assert_eq!(with_groups(&[(0, 2), (1, 5)]), overlap(1));
    assert_eq!(with_groups(&[(2, 4), (0, 5)]), overlap(3));
    // Nobody is short of rows of a partition that has none.
    assert_eq!(with_groups(&[(0, 3), (2, 5)]), Ok(()));
}

#[test]
fn offsets_outside_of_the_data_are_refused() {
    let partitions = numbers(&[0], 1);
    let format = Format::new(vec![Field::Bytes]);
    for (start, end) in [(0_i64, 4_i64), (-1, 2), (2, 1)] {
        let offsets = [start.to_ne_bytes(), end.to_ne_bytes()].concat();
        let column = Column::Bytes {
            offsets: &offsets,
            data: &[1, 2, 3],
            nulls: None,
        };
        let input = Input {
            format: &format,
            columns: &[column],
            partitions: &partitions,
            note: &[],
        };
        let misfit = RowsError::Column { field: 0, rows: 1 };
        assert_eq!(
            Arenas::new(input, &[]).map(drop),
            Err(misfit),
            "{start}..{end}"
        );
    }
}

#[test]
fn a_row_that_is_larger_than_a_batch_has_a_batch_of_its_own() {
    let values = [Values::Bytes(vec![
        Some(vec![1; 10]),
        Some(vec![2; 900]),
        Some(vec![3; 10]),
        Some(vec![4; 10]),
    ])];
    let memory = memory(&values[0], 0);
    let columns = [column(&values[0], &memory)];
    let partitions = numbers(&[0, 0, 0, 1], 2);
    let format = Format::new(fields(&values));
    let input = Input {
        format: &format,
        columns: &columns,
        partitions: &partitions,
        note: &[],
    };
    let groups = [Wanted {
        epoch: Generation(1),
        partitions: Runs::range(0, 2),
    }];
    let (_, batches) = gather(input, &groups, 100);
    let rows: Vec<u64> = batches[0].iter().map(|b| b.header.tally.rows).collect();
    // The third row is a piece of partition 0 again, and has room for partition 1 beside it.
    assert_eq!(rows, [1, 1, 2]);
}
