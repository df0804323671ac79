//! What the client does: four workloads of Dask's scaling report, with the report's sizes.

/// A workload of tasks that sleep.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Workload {
    /// `map` of tasks without inputs, so many for each slot, and `wait`.
    Flat(u32),
    /// A graph that adds neighbours until one is left, 2⁷ leaves for each slot.
    Tree,
    /// A `map` over neighbours, and one over neighbours of its futures, 20 for each slot.
    Neighbours,
    /// A `map` of 20 tasks for each slot, whose results the client sums up as they come.
    Loop,
}

impl Workload {
    /// Those of the report.
    pub const ALL: [Self; 4] = [Self::Flat(100), Self::Tree, Self::Neighbours, Self::Loop];

    /// Its name in `bench/scaling`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Flat(_) => "tasks-100ms",
            Self::Tree => "tree",
            Self::Neighbours => "neighbours",
            Self::Loop => "client-in-the-loop",
        }
    }
}

/// One call of the client's.
#[derive(Clone, Debug, Default)]
pub(super) struct Call {
    /// Whether it is a graph, which is built before any of it is sent.
    pub(super) is_graph: bool,
    /// By task, whether the client wants its value.
    pub(super) wanted: Vec<bool>,
    /// By task, the function that it runs; empty: the same for all.
    pub(super) functions: Vec<u32>,
    /// By task, what it reads: numbers of tasks, in the order in which they are submitted.
    pub(super) inputs: Vec<Vec<u32>>,
    /// By task, its place in the planned order.
    pub(super) ranks: Vec<u32>,
}

impl Call {
    pub(super) fn map(inputs: Vec<Vec<u32>>) -> Self {
        Self {
            is_graph: false,
            wanted: vec![true; inputs.len()],
            functions: Vec::new(),
            ranks: (0..inputs.len() as u32).collect(),
            inputs,
        }
    }

    /// For each task, how many of the same call read it.
    pub(super) fn readers(&self, first: u32) -> Vec<u32> {
        let mut readers = vec![0; self.inputs.len()];
        for input in self.inputs.iter().flatten() {
            if let Some(at) = input.checked_sub(first) {
                readers[at as usize] += 1;
            }
        }
        readers
    }
}

/// What the client calls at once, one after the other.
pub(super) fn calls(workload: Workload, slots: u32) -> Vec<Call> {
    match workload {
        Workload::Flat(each) => vec![Call::map(vec![Vec::new(); (slots * each) as usize])],
        Workload::Loop => vec![Call::map(vec![Vec::new(); (slots * 20) as usize])],
        Workload::Neighbours => {
            let first = 20 * slots - 1;
            let pairs = (0..first - 1).map(|at| vec![at, at + 1]).collect();
            vec![
                Call::map(vec![Vec::new(); first as usize]),
                Call::map(pairs),
            ]
        }
        Workload::Tree => vec![tree(slots << 7)],
    }
}

/// Neighbours are added until there is one; the last task of the call is that.
fn tree(leaves: u32) -> Call {
    let mut call = Call {
        is_graph: true,
        inputs: vec![Vec::new(); (leaves / 2) as usize],
        ..Call::default()
    };
    let mut level: Vec<u32> = (0..leaves / 2).collect();
    while level.len() > 1 {
        // As the report has it, one that is left over is forgotten.
        let above = level.chunks_exact(2).map(|pair| {
            call.inputs.push(pair.to_vec());
            call.inputs.len() as u32 - 1
        });
        level = above.collect();
    }
    call.ranks = depth_first(&call.inputs);
    call.wanted = vec![false; call.inputs.len()];
    call.wanted[level[0] as usize] = true;
    call
}

/// Each task comes right after what it reads, as a planned order has it.
fn depth_first(inputs: &[Vec<u32>]) -> Vec<u32> {
    let mut ranks = vec![u32::MAX; inputs.len()];
    let mut next = 0;
    let mut stack: Vec<(u32, bool)> = Vec::new();
    for root in (0..inputs.len() as u32).rev() {
        stack.push((root, false));
        while let Some((task, is_after)) = stack.pop() {
            if ranks[task as usize] != u32::MAX {
                continue;
            }
            if is_after {
                ranks[task as usize] = next;
                next += 1;
                continue;
            }
            stack.push((task, true));
            let below = inputs[task as usize].iter().rev();
            stack.extend(below.map(|input| (*input, false)));
        }
    }
    ranks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_has_one_root_and_is_planned_depth_first() {
        let call = tree(8);
        assert_eq!(call.inputs.len(), 7);
        assert_eq!(call.inputs[4..], [vec![0, 1], vec![2, 3], vec![4, 5]]);
        assert_eq!(call.ranks, [0, 1, 3, 4, 2, 5, 6]);
        assert_eq!(call.readers(0), [1, 1, 1, 1, 1, 1, 0]);
    }

    #[test]
    fn neighbours_read_two_of_the_call_before() {
        let calls = calls(Workload::Neighbours, 2);
        assert_eq!((calls[0].inputs.len(), calls[1].inputs.len()), (39, 38));
        assert_eq!(calls[1].inputs[37], [37, 38]);
        assert_eq!(calls[1].readers(39), vec![0; 38]);
    }
}
