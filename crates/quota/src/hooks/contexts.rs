//! Hooks for functions that end contexts and free their memory. Memory with handles and memory in pools
//! outlive a context (see `cuCtxDestroy`). Whether they also outlive the reset of a GPU is undocumented,
//! so the driver is asked.

use super::hooks;
use crate::abi::{Code, Device, Handle};
use crate::account::{ContextEnd, end};
use crate::driver;
use crate::panic_guard::DriverCall;

fn destroy<F: Fn() -> Code>(call: &DriverCall<F>, context: Handle) -> Code {
    end(call, Some(ContextEnd { context, pools_of: None, verify: false }), || true)
}

/// Handles a context that might still be used elsewhere, so each address is checked with the driver.
fn detach<F: Fn() -> Code>(call: &DriverCall<F>, context: Handle) -> Code {
    end(call, Some(ContextEnd { context, pools_of: None, verify: true }), || true)
}

fn primary(device: Device) -> Option<ContextEnd> {
    let context = driver::primary_context(device)?;
    Some(ContextEnd { context, pools_of: Some(device), verify: false })
}

fn reset<F: Fn() -> Code>(call: &DriverCall<F>, device: Device) -> Code {
    end(call, primary(device), || true)
}

/// Handles a release, which ends the primary context only if its caller was the last user.
fn release<F: Fn() -> Code>(call: &DriverCall<F>, device: Device) -> Code {
    end(call, primary(device), || !driver::primary_is_active(device))
}

hooks! { of CUDA:
    cuCtxDestroy_v2(context: Handle) |call| { destroy(call, context) }
    cuCtxDestroy(context: Handle) |call| { destroy(call, context) }
    cuCtxDetach(context: Handle) |call| { detach(call, context) }
    cuDevicePrimaryCtxReset_v2(device: Device) |call| { reset(call, device) }
    cuDevicePrimaryCtxReset(device: Device) |call| { reset(call, device) }
    cuDevicePrimaryCtxRelease_v2(device: Device) |call| { release(call, device) }
    cuDevicePrimaryCtxRelease(device: Device) |call| { release(call, device) }
    cuGreenCtxDestroy(green: Handle) |call| {
        let context = driver::context_of_green(green);
        end(call, context.map(|context| ContextEnd { context, pools_of: None, verify: true }), || true)
    }
}
