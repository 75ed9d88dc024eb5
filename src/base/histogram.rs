//! Counting values by their size, in a fixed room and without a branch on the value.

/// Buckets of a histogram; the last has no upper bound.
pub const BUCKETS: usize = 24;

/// Counts of values. Bucket `i` holds those up to `1 << (LEAST + i)` that no lower one holds, so
/// a value is told to within a factor of two.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Histogram<const LEAST: u32> {
    pub counts: [u64; BUCKETS],
    pub sum: u64,
}

/// Microseconds, from 16 µs to 67 s.
pub type Micros = Histogram<4>;
/// Bytes, from one block to 16 GiB.
pub type Sizes = Histogram<12>;
/// Small numbers, from 1 to 4 Mi.
pub type Numbers = Histogram<0>;

/// The bucket of a value.
#[inline]
pub fn bucket(least: u32, value: u64) -> usize {
    // Bits of what is left above the bound: 0 up to it, 1 up to twice of it, and so on.
    let above = value.saturating_sub(1) >> least;
    ((u64::BITS - above.leading_zeros()) as usize).min(BUCKETS - 1)
}

/// The largest value of a bucket; `None` for the last.
pub fn bound(least: u32, bucket: usize) -> Option<u64> {
    (bucket + 1 < BUCKETS).then(|| 1 << (least as usize + bucket))
}

impl<const LEAST: u32> Histogram<LEAST> {
    #[inline]
    pub fn record(&mut self, value: u64) {
        self.counts[bucket(LEAST, value)] += 1;
        self.sum = self.sum.saturating_add(value);
    }

    pub fn add(&mut self, other: &Self) {
        self.counts.iter_mut().zip(other.counts).for_each(|(sum, count)| *sum += count);
        self.sum = self.sum.saturating_add(other.sum);
    }

    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_lies_in_the_first_bucket_that_holds_it() {
        for (value, want) in [(0, 0), (1, 0), (16, 0), (17, 1), (32, 1), (33, 2), (64, 2), (65, 3)]
        {
            assert_eq!(bucket(4, value), want, "{value}");
        }
        assert_eq!(bucket(0, 1), 0);
        assert_eq!(bucket(0, 2), 1);
        assert_eq!(bucket(0, u64::MAX), BUCKETS - 1);
        for least in [0, 4, 12] {
            for at in 0..BUCKETS - 1 {
                let most = bound(least, at).unwrap();
                assert_eq!((bucket(least, most), bucket(least, most + 1)), (at, at + 1));
            }
            assert_eq!(bound(least, BUCKETS - 1), None);
        }
    }

    #[test]
    fn sums_and_counts_add_up() {
        let (mut a, mut b) = (Micros::default(), Micros::default());
        [10, 20, 30].into_iter().for_each(|us| a.record(us));
        b.record(u64::MAX);
        a.add(&b);
        assert_eq!((a.count(), a.sum, a.counts[BUCKETS - 1]), (4, u64::MAX, 1));
    }
}
