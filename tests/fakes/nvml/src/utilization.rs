//! Current utilization of a device. For past samples see [`crate::sampler`].

use std::ffi::c_uint;

use crate::abi::Utilization;
use crate::code::Answer;
use crate::edge::{Out, device_calls, put};
use crate::gate::Call;
use crate::machine::Activity;

device_calls! {
    nvmlDeviceGetUtilizationRates(call, rates: Out<Utilization>) {
        let busiest = &call.unsplit()?.busiest;
        put(rates, Utilization { gpu: busiest.sm, memory: busiest.memory })
    }
    nvmlDeviceGetEncoderUtilization(call, percent: Out<c_uint>, period: Out<c_uint>) {
        engine(call, |busiest| busiest.encoder, percent, period)
    }
    nvmlDeviceGetDecoderUtilization(call, percent: Out<c_uint>, period: Out<c_uint>) {
        engine(call, |busiest| busiest.decoder, percent, period)
    }
    nvmlDeviceGetJpgUtilization(call, percent: Out<c_uint>, period: Out<c_uint>) {
        engine(call, |busiest| busiest.jpg, percent, period)
    }
    nvmlDeviceGetOfaUtilization(call, percent: Out<c_uint>, period: Out<c_uint>) {
        engine(call, |busiest| busiest.ofa, percent, period)
    }
}

fn engine(call: &Call<'_>, which: fn(&Activity) -> u32, percent: Out<c_uint>, period: Out<c_uint>) -> Answer {
    put(percent, which(&call.unsplit()?.busiest))?;
    put(period, c_uint::try_from(call.machine.period).unwrap_or(c_uint::MAX))
}
