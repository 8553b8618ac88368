//! What a C caller passes to be filled in or read. The only place where its pointers are followed: NVML's contract is
//! that each is null or points to what the signature says, for the length of the call.

use std::ffi::{CStr, c_char, c_uint};

use nvml_wrapper_sys::bindings::{
    nvmlReturn_enum_NVML_ERROR_ARGUMENT_VERSION_MISMATCH as ARGUMENT_VERSION_MISMATCH,
    nvmlReturn_enum_NVML_ERROR_INSUFFICIENT_SIZE as INSUFFICIENT_SIZE,
    nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT as INVALID_ARGUMENT, nvmlReturn_t,
};

/// The end of a call: done, or NVML's code.
pub(crate) type Outcome = Result<(), nvmlReturn_t>;

/// A pointer to one `T`, or to an array of them.
#[repr(transparent)]
#[derive(Debug)]
pub struct Out<T>(*mut T);

// Derived, both would ask for `T: Copy`; a pointer is copied whatever it points to.
impl<T> Copy for Out<T> {}
impl<T> Clone for Out<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T: Copy> Out<T> {
    pub(crate) fn set(self, value: T) -> Outcome {
        if self.0.is_null() {
            return Err(INVALID_ARGUMENT);
        }
        // SAFETY: not null, so by NVML's contract it points to a `T` that may be written; alignment is not relied upon.
        unsafe { self.0.write_unaligned(value) };
        Ok(())
    }

    pub(crate) fn get(self) -> Result<T, nvmlReturn_t> {
        if self.0.is_null() {
            return Err(INVALID_ARGUMENT);
        }
        // SAFETY: not null, so by NVML's contract it points to an initialised `T`.
        Ok(unsafe { self.0.read_unaligned() })
    }

    pub(crate) fn is_null(self) -> bool {
        self.0.is_null()
    }

    /// The older array protocol: the caller vouches for the room, and `count` only tells how many there are.
    pub(crate) fn set_all(self, count: Out<c_uint>, items: &[T]) -> Outcome {
        count.set(items.len() as c_uint)?;
        for (i, item) in items.iter().enumerate() {
            Out(self.0.wrapping_add(i)).set(*item)?;
        }
        Ok(())
    }

    /// The array protocol: `count` is the room that there is, and becomes the number that there are. Too little room is
    /// INSUFFICIENT_SIZE, and nothing is written; with room 0 the pointer is not looked at, because callers pass a
    /// dangling one.
    pub(crate) fn set_list(self, count: Out<c_uint>, items: &[T]) -> Outcome {
        let room = count.get()? as usize;
        count.set(items.len() as c_uint)?;
        if room < items.len() {
            return Err(INSUFFICIENT_SIZE);
        }
        for (i, item) in items.iter().enumerate() {
            // The caller said that there is room for this one; `wrapping_add` keeps a null pointer recognisable at i = 0.
            Out(self.0.wrapping_add(i)).set(*item)?;
        }
        Ok(())
    }
}

/// A struct that begins with its version.
pub trait Versioned: Copy {
    /// Number of the layout.
    const NUMBER: u32;

    /// What the caller has put there.
    fn version(&self) -> u32;
}

impl<T: Versioned> Out<T> {
    /// The caller's struct if it has the layout that this library knows: `sizeof | number << 24`.
    pub(crate) fn get_versioned(self) -> Result<T, nvmlReturn_t> {
        let value = self.get()?;
        if value.version() != size_of::<T>() as u32 | T::NUMBER << 24 {
            return Err(ARGUMENT_VERSION_MISMATCH);
        }
        Ok(value)
    }
}

/// A buffer for text.
#[repr(transparent)]
#[derive(Debug, Clone, Copy)]
pub struct TextOut(*mut c_char);

impl TextOut {
    /// Writes `text` with its terminator into a buffer of `length` bytes.
    pub(crate) fn set(self, length: c_uint, text: &str) -> Outcome {
        if self.0.is_null() {
            return Err(INVALID_ARGUMENT);
        }
        if text.len() >= length as usize {
            return Err(INSUFFICIENT_SIZE);
        }
        // SAFETY: not null, so by NVML's contract it points to `length` bytes, and text and terminator are no more.
        unsafe {
            self.0
                .cast::<u8>()
                .copy_from_nonoverlapping(text.as_ptr(), text.len());
            self.0.add(text.len()).write(0);
        }
        Ok(())
    }

    /// As [`Self::set`], where the length comes and goes by pointer.
    pub(crate) fn set_sized(self, length: Out<c_uint>, text: &str) -> Outcome {
        let room = length.get()?;
        length.set(text.len() as c_uint + 1)?;
        if room as usize <= text.len() {
            return Err(INSUFFICIENT_SIZE);
        }
        self.set(room, text)
    }
}

/// A text from the caller.
#[repr(transparent)]
#[derive(Debug, Clone, Copy)]
pub struct TextIn(*const c_char);

impl TextIn {
    pub(crate) fn get(self) -> Result<String, nvmlReturn_t> {
        if self.0.is_null() {
            return Err(INVALID_ARGUMENT);
        }
        // SAFETY: not null, so by NVML's contract it points to a terminated string.
        let text = unsafe { CStr::from_ptr(self.0) };
        text.to_str()
            .map(str::to_owned)
            .map_err(|_| INVALID_ARGUMENT)
    }
}

/// A fixed field of a struct: `text`, cut to fit with its terminator.
pub(crate) fn fixed<const N: usize>(text: &str) -> [c_char; N] {
    let mut field = [0; N];
    for (to, from) in field[..N - 1].iter_mut().zip(text.bytes()) {
        *to = from as c_char;
    }
    field
}
