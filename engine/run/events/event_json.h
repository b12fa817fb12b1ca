// Turns events into messages (proto/events.proto) and into lines of JSON.
#pragma once

#include "engine/api/events.h"
#include "engine/files/io/json_lines.h"
#include "proto/events.pb.h"

namespace shale {

// Returns the message of an event. That of a CheckpointReport whose status is not OK is a Warning.
proto::Event EventMessage(const RunEvent& event);

// Returns the fields of what happened, in the order of the message, also those that are 0. NaN and infinity become
// null. This is a row of metrics.jsonl, if a step or an evaluation is done:
//   {"step": 1, "tokens": 2048, "loss": 5.54, ...}
JsonObject EventFields(const RunEvent& event);

// Returns the same with the kind of the event, which is the name of its field in the message, and its time in front:
//   {"event": "step", "time": 1764070000.25, "step": 1, "tokens": 2048, "loss": 5.54, ...}
JsonObject EventLine(const RunEvent& event);

}  // namespace shale
