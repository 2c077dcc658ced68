//! What ends contexts, and with them their memory. What was made by handle or in the order of a stream outlives a context
//! (`cuCtxDestroy` says so); whether it outlives the reset of a GPU nobody says, so the driver is asked.

use super::hooks;
use crate::abi::{Code, Device, Handle};
use crate::account::{Ending, end};
use crate::driver;
use crate::shield::Ask;

fn destroy<F: Fn() -> Code>(ask: &Ask<F>, context: Handle) -> Code {
    end(ask, Some(Ending { context, pools_of: None, doubtful: false }), || true)
}

/// A context that may be used by others still.
fn detach<F: Fn() -> Code>(ask: &Ask<F>, context: Handle) -> Code {
    end(ask, Some(Ending { context, pools_of: None, doubtful: true }), || true)
}

fn primary(device: Device) -> Option<Ending> {
    let context = driver::primary_context(device)?;
    Some(Ending { context, pools_of: Some(device), doubtful: false })
}

fn reset<F: Fn() -> Code>(ask: &Ask<F>, device: Device) -> Code {
    end(ask, primary(device), || true)
}

/// Ends the context only if nobody uses it any more.
fn release<F: Fn() -> Code>(ask: &Ask<F>, device: Device) -> Code {
    end(ask, primary(device), || !driver::primary_is_active(device))
}

hooks! { of CUDA:
    cuCtxDestroy_v2(context: Handle) |ask| { destroy(ask, context) }
    cuCtxDestroy(context: Handle) |ask| { destroy(ask, context) }
    cuCtxDetach(context: Handle) |ask| { detach(ask, context) }
    cuDevicePrimaryCtxReset_v2(device: Device) |ask| { reset(ask, device) }
    cuDevicePrimaryCtxReset(device: Device) |ask| { reset(ask, device) }
    cuDevicePrimaryCtxRelease_v2(device: Device) |ask| { release(ask, device) }
    cuDevicePrimaryCtxRelease(device: Device) |ask| { release(ask, device) }
    cuGreenCtxDestroy(green: Handle) |ask| {
        let context = driver::context_of_green(green);
        end(ask, context.map(|context| Ending { context, pools_of: None, doubtful: true }), || true)
    }
}
