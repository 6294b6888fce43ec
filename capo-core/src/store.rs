//! Location of moments: the model's own, in host memory or on a device, or the trainer's.

use crate::error::ensure;
use crate::moments::{HostSource, Moments};
use crate::step::MomentArrays;
use crate::{Arrays, Error, HostMoments, LastLayer, cuda};

/// The model's own moments, in host memory or on a device.
#[derive(Debug)]
pub(crate) enum Store {
    Host(Moments),
    Cuda(cuda::Moments),
}

impl Store {
    /// Number of rows with moments.
    pub fn rows(&self) -> usize {
        match self {
            Self::Host(moments) => moments.slots.len(),
            Self::Cuda(moments) => moments.rows,
        }
    }

    /// Number of steps in the moments.
    pub fn steps(&self) -> u64 {
        match self {
            Self::Host(moments) => moments.steps,
            Self::Cuda(moments) => moments.steps,
        }
    }

    /// V and D of the batches seen; 0 before the first step.
    pub fn dims(&self) -> (usize, usize) {
        match self {
            Self::Host(moments) => (moments.vocab_size, moments.width),
            Self::Cuda(moments) => moments.dims(),
        }
    }

    /// Checks that `who` has the state's vocabulary and width.
    pub fn check_dims(&self, vocab_size: usize, width: usize, who: &str) -> Result<(), Error> {
        let (v, d) = self.dims();
        ensure(self.steps() == 0 || (v, d) == (vocab_size, width), || {
            format!(
                "{who} vocabulary {vocab_size} and width {width}, the curvature state has {v} and \
                 {d} (use the model it was made with, or start without a state)"
            )
        })
    }

    /// A copy on the device of `batch`; `None` if the moments are already there.
    pub fn moved_to(&self, batch: &LastLayer) -> Result<Option<Self>, Error> {
        let dims = (batch.vocab_size, batch.width);
        match (self, &batch.arrays) {
            (Self::Host(_), Arrays::Host(_)) => Ok(None),
            (Self::Cuda(moments), Arrays::Cuda(arrays))
                if moments.device.ordinal() == arrays.device
                    && (self.steps() > 0 || moments.dims() == dims) =>
            {
                Ok(None)
            }
            (Self::Host(moments), Arrays::Cuda(arrays)) => {
                Ok(Some(Self::Cuda(cuda::Moments::of(moments, arrays, dims)?)))
            }
            (Self::Cuda(moments), Arrays::Host(_)) => Ok(Some(Self::Host(moments.to_host()?))),
            (Self::Cuda(moments), Arrays::Cuda(_)) => {
                Self::Host(moments.to_host()?).moved_to(batch)
            }
        }
    }
}

/// The moments from which a proposal starts.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Source<'a> {
    /// The model's own moments, from the objective's gradient.
    Own(&'a Store),
    /// The trainer's moments, from the loss's gradient.
    Trainer(HostMoments<'a>),
}

impl<'a> Source<'a> {
    /// Number of steps in the moments.
    pub fn steps(&self) -> u64 {
        match self {
            Self::Own(store) => store.steps(),
            Self::Trainer(moments) => moments.steps,
        }
    }

    /// True if no row has moments.
    pub fn is_empty(&self) -> bool {
        match self {
            Self::Own(store) => store.rows() == 0,
            Self::Trainer(moments) => moments.steps == 0,
        }
    }

    /// True if moments on a device start at multiples of 16 bytes, as the model's own do.
    pub fn is_aligned(&self) -> bool {
        match self {
            Self::Trainer(HostMoments {
                arrays:
                    MomentArrays::Cuda {
                        exp_avg,
                        exp_avg_sq,
                    },
                ..
            }) => exp_avg.address().is_multiple_of(16) && exp_avg_sq.address().is_multiple_of(16),
            Self::Own(_) | Self::Trainer(_) => true,
        }
    }

    /// The moments in host memory; an error if they are on a device.
    pub fn on_host(&self) -> Result<HostSource<'a>, Error> {
        match self {
            Self::Own(Store::Host(moments)) => Ok(HostSource::Own(moments)),
            Self::Trainer(HostMoments {
                arrays:
                    MomentArrays::Host {
                        exp_avg,
                        exp_avg_sq,
                    },
                ..
            }) => Ok(HostSource::Trainer {
                exp_avg,
                exp_avg_sq,
            }),
            Self::Own(Store::Cuda(_)) | Self::Trainer(_) => Err(Error::input(
                "the moments lie on a device and the batch in host memory (pass both from one \
                 place)",
            )),
        }
    }
}
