"""The planted bugs: plausible mistakes, and the tests that must find them.

Each is written into copies of the sources (plant.py) behind PLANTED, which is true while this bug
is switched on. `layer` and `filter` name the tests that run after the swarm, or instead of it where
the bug needs two threads or a long run to show: the swarm's worlds have one thread and last
seconds. Bugs of the layer "fake_verbs" are in the verbs provider and found with fake NICs
(tests/fake_verbs); they are left out where that provider is not built. The guest has them too
(tests/guest/planted).
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Edit:
    file: str  # below src/
    find: str  # exactly once in it
    replace: str


@dataclass(frozen=True)
class Bug:
    name: str
    mistake: str
    edits: tuple
    layer: str = ""  # of a test binary: unit, scenario, kv, fake_verbs or explore
    filter: str = ""
    swarm: bool = True  # whether the swarm can find it
    world: int = 0  # the seed of a world that finds it, tried before the search from seed 1


def bug(name, mistake, *edits, **more):
    return Bug(name, mistake, tuple(Edit(*edit) for edit in edits), **more)


# Part of the bugs in which the target sends its drain report too early: writes that land after the
# report still count, as they would in such an implementation.
COUNTS_AFTER_THE_REPORT = (
    "providers/verbs/datapath.cc",
    "      if (in == nullptr || in->state == InPath::State::kDown) continue;"
    "  // an abandoned drain",
    "      if (PLANTED && completion.status == IBV_WC_SUCCESS &&\n"
    "          (in == nullptr || in->state == InPath::State::kDown)) {\n"
    "        out[n++] = {.kind = RailEvent::Kind::kImm, .imm = ntohl(completion.imm_data)};\n"
    "        continue;\n"
    "      }\n"
    "      if (in == nullptr || in->state == InPath::State::kDown) continue;"
    "  // an abandoned drain")

BUGS = (
    bug("count_before_data",
        "the NIC counts a write with its first packet instead of its last",
        ("providers/sim/datapath.cc",
         "if (flight.landed && flight.op.has_imm != 0) count(",
         "if ((PLANTED ? packet.offset == 0 : flight.landed) && flight.op.has_imm != 0) count(")),
    bug("count_with_the_first_slice",
        "the first slice of a shard carries the count instead of the last",
        ("core/datapath.cc",
         "if (!last) source.counter_key = {};",
         "if (PLANTED ? fragment.offset != fragment.shard.begin : !last) "
         "source.counter_key = {};")),
    bug("lost_tail_byte",
        "a last byte beyond a multiple of 512 is rounded away",
        ("core/datapath.cc",
         "wr.size_bytes = source.size_bytes;",
         "wr.size_bytes = source.size_bytes - (PLANTED && source.size_bytes % 512 == 1);"),
        ("core/fast_path.cc",
         "  wr.size_bytes = source.size_bytes;\n  wr.lkey",
         "  wr.size_bytes = source.size_bytes - (PLANTED && source.size_bytes % 512 == 1);\n"
         "  wr.lkey")),
    bug("double_count_on_failover",
        "every write in doubt after a broken connection is replayed, whatever the target has taken",
        ("core/failover.cc",
         "const bool delivered = report.exact && ",
         "const bool delivered = !PLANTED && report.exact && "),
        layer="scenario", filter="Failover.ARailOfTheSender*",
        world=24),
    bug("answer_before_drain",
        "a revocation or a fence is confirmed while writes to the peer are still posted",
        ("core/control_ops.cc",
         "if (drain.upto_seq >= oldest) return false;",
         "if (!PLANTED && drain.upto_seq >= oldest) return false;"),
        layer="scenario", filter="Fenced*:Deregister.*:ClosedName.*", swarm=False),
    bug("replay_with_another_shard_count",
        "a replayed shard counts as if the write had been split for the current number of rails",
        ("core/failover.cc",
         "const uint32_t rail = deal_one(network, up, bytes_to_post(op, fragment));",
         "if (PLANTED && slices_of(op, fragment.cut) != nullptr) "
         "slices_of(op, fragment.cut)->shards = up.count;\n"
         "  const uint32_t rail = deal_one(network, up, bytes_to_post(op, fragment));"),
        layer="scenario", filter="Failover.TheTargetsEnd*",
        world=19),
    bug("shard_of_a_target_counts_as_a_whole",
        "each shard of a scatter target that is cut counts as if it were the entire target",
        ("core/datapath.cc",
         "fill_wr(write.wr, op, path, source, sliced != nullptr ? sliced->shards : 1);",
         "fill_wr(write.wr, op, path, source,\n"
         "    sliced == nullptr || (PLANTED && fragment.cut != kNone) ? 1 : sliced->shards);"),
        layer="scenario", filter="Rails/CutTargets.*"),
    bug("target_complete_with_its_first_shard",
        "a scatter target that is cut is reported as soon as one of its shards has completed",
        ("core/transfer.cc",
         "  if (sliced.slices_completed < sliced.slices) return false;\n",
         "  if (PLANTED && cut != kNone && sliced.slices_completed == 1) "
         "complete_part(op, part, peer, status, 0);\n"
         "  if (sliced.slices_completed < sliced.slices) return false;\n"
         "  if (PLANTED && cut != kNone) {\n"
         "    cut_targets_.give_back(cut);\n"
         "    return true;\n"
         "  }\n"),
        layer="scenario", filter="Rails/CutTargets.*"),
    bug("no_poisoning_after_unknown",
        "the unknown fate of a counted write is not reported to the receiver",
        ("core/transfer.cc",
         "      poison_key(op, part, peer, status.code);",
         "      if (!PLANTED) poison_key(op, part, peer, status.code);"),
        layer="scenario", filter="PoisonedKey.*",
        world=12),
    bug("check_then_add",
        "checking a counter's generation and updating its word are two separate steps",
        ("core/counter_table.cc",
         "    if (cell.compare_exchange_weak(seen, wanted, std::memory_order_acq_rel,\n"
         "                                   std::memory_order_relaxed)) {",
         "    if (PLANTED) {\n"
         "      cell.exchange(wanted, std::memory_order_acq_rel);\n"
         "      return {true, seen, wanted};\n"
         "    }\n"
         "    if (cell.compare_exchange_weak(seen, wanted, std::memory_order_acq_rel,\n"
         "                                   std::memory_order_relaxed)) {"),
        layer="explore", filter="ExploreCounter.EveryExpectation*", swarm=False),
    bug("cancel_without_pin",
        "a cancel checks that its expectation is armed, but does not pin it",
        ("core/counter_table.cc",
         "  if (!slot.claim.compare_exchange_strong(claim, claim | kPinned,"
         " std::memory_order_acq_rel,\n"
         "                                          std::memory_order_relaxed)) {",
         "  if (PLANTED) {\n"
         "    if (slot.claim.load(std::memory_order_acquire) != claim) return false;\n"
         "  } else if (!slot.claim.compare_exchange_strong(claim, claim | kPinned,\n"
         "                                                 std::memory_order_acq_rel,\n"
         "                                                 std::memory_order_relaxed)) {"),
        ("core/counter_table.cc",
         "fire(slot, why, kPinned);",
         "fire(slot, why, PLANTED ? 0 : kPinned);"),
        layer="explore", filter="ExploreCounter.EveryExpectation*", swarm=False),
    bug("key_reused_too_early",
        "the half-wrap rule is not applied: a counter key is reused while its late writes may still"
        " land",
        ("core/counter_table.cc",
         "if (slot.half_wrap_ns != kNeverWrapped && ",
         "if (!PLANTED && slot.half_wrap_ns != kNeverWrapped && "),
        layer="unit", filter="CounterTableTest.*", swarm=False),
    bug("resolver_forgotten",
        "peers that resolved a name are not recorded, and not asked to revoke it when it is closed",
        ("core/counters.cc",
         "      resolvers.push_back(peer.id());",
         "      if (!PLANTED) resolvers.push_back(peer.id());"),
        layer="scenario", filter="ClosedName.*:KeyReuse.*", swarm=False),
    bug("dropped_error_completion",
        "a failed completion is dropped",
        ("core/datapath.cc",
         "        const RailEvent& event = events[i];",
         "        const RailEvent& event = events[i];\n"
         "        if (PLANTED && event.kind == RailEvent::Kind::kCompletion &&"
         " event.code != Errc::kOk) {\n"
         "          ++i;\n"
         "          continue;\n"
         "        }")),
    bug("wrong_rail_for_a_rotated_write",
        "a write on another rail than the first carries the rkey of the first",
        ("core/datapath.cc",
         "theirs[path.remote_rail % theirs.size()][path.rail];",
         "theirs[PLANTED ? 0 : path.remote_rail % theirs.size()][path.rail];"),
        ("core/fast_path.cc",
         "rkeys[path.remote_rail % rkeys.size()][path.rail]",
         "rkeys[PLANTED ? 0 : path.remote_rail % rkeys.size()][path.rail]")),
    bug("missed_wake_up",
        "the completion of an expectation is published after its waiter was woken",
        ("core/counter_table.cc",
         "  // The last access to the record, ",
         "  if (PLANTED && waiter != nullptr) slot.waiters.wake();\n"
         "  // The last access to the record, "),
        ("core/counter_table.cc",
         "    slot.waiters.wake();\n  } else if",
         "    if (!PLANTED) slot.waiters.wake();\n  } else if"),
        layer="explore", filter="ExploreCounter.EveryExpectation*", swarm=False),
    bug("source_read_after_completion",
        "the NIC reads the source when a packet lands, not when it leaves",
        ("providers/sim/datapath.cc",
         "std::memcpy(target + packet.offset, packet.bytes.data(), packet.bytes.size());",
         "const auto* source = reinterpret_cast<const std::byte*>(flight.op.source);\n"
         "  std::memcpy(target + packet.offset,\n"
         "              PLANTED ? source + packet.offset : packet.bytes.data(),\n"
         "              packet.bytes.size());"),
        world=12),
    bug("room_event_lost",
        "the flag that a submitter waits for room is cleared by the first check, without room",
        ("core/core.cc",
         "if (!room_wanted.load(std::memory_order_seq_cst)) return;",
         "if (PLANTED ? !room_wanted.exchange(false) : !room_wanted.load()) return;"),
        ("core/core.cc",
         "if (!room_wanted.exchange(false, std::memory_order_acq_rel)) return;",
         "if (!PLANTED && !room_wanted.exchange(false, std::memory_order_acq_rel)) return;"),
        layer="scenario", filter="FullQueue.*:BackPressure.*"),
    bug("fence_that_answers_too_early",
        "a fence of a silent peer completes with kOk without proof that the peer is shut out",
        ("core/control_ops.cc",
         "if ((!asked && !peer.unproved_fence) || !fully_fenced(peer)) return;",
         "if ((!asked && !peer.unproved_fence) || (!PLANTED && !fully_fenced(peer))) return;"),
        layer="scenario", filter="Fenced*:LateProof.*",
        world=87),
    bug("batch_counts_a_part_twice",
        "a part of unknown fate is counted as failed twice",
        ("core/report.cc",
         "if (completion.remote == Remote::kUnknown) batch->unknown.fetch_add(",
         "if (PLANTED && completion.remote == Remote::kUnknown) batch->failed.fetch_add(1);\n"
         "  if (completion.remote == Remote::kUnknown) batch->unknown.fetch_add(")),
    bug("deadline_that_never_fires_when_idle",
        "a turn that found no work does not return the next deadline",
        ("core/core.cc",
         "result.next_ns = std::min({timers.next_ns(),",
         "result.next_ns = std::min({PLANTED && result.done == 0 ? kNeverNs : timers.next_ns(),")),
    bug("stale_descriptor_accepted",
        "a descriptor of an earlier incarnation of its owner is accepted",
        ("core/region.cc",
         "if (desc->owner_incarnation != owner.remote.incarnation) return",
         "if (!PLANTED && desc->owner_incarnation != owner.remote.incarnation) return"),
        layer="scenario", filter="PeerComesBack.*:Restart.*"),
    bug("callback_inside_submit",
        "submit() runs a turn and the callbacks that are due",
        ("core/submit.cc",
         "FABRIC_CHECK(submissions.push(op.slot), \"submission ring overflow\");\n"
         "  driver->wake(*this);\n"
         "  return id;\n"
         "}\n"
         "\n"
         "Result<void*>",
         "FABRIC_CHECK(submissions.push(op.slot), \"submission ring overflow\");\n"
         "  driver->wake(*this);\n"
         "  if (PLANTED) {\n"
         "    turn(driver->now_ns());\n"
         "    run_callbacks();\n"
         "  }\n"
         "  return id;\n"
         "}\n"
         "\n"
         "Result<void*>")),
    bug("mixed_shard_counts_in_a_run",
        "consecutive counts for one counter key are added as if all had one shard count",
        ("core/counter_table.cc",
         "at != group && *at == imm;",
         "at != group && (PLANTED ? (*at & kKeyMask) == (imm & kKeyMask) : *at == imm);"),
        layer="unit", filter="CounterTableTest.*",
        world=36),
    bug("refused_writes_forgotten",
        "writes that a full rail refused are not posted again",
        ("core/datapath.cc",
         "add_to_backlog(rail, batch.subspan(accepted, n - accepted));",
         "if (!PLANTED) add_to_backlog(rail, batch.subspan(accepted, n - accepted));"),
        layer="scenario", filter="FullQueue.*:BackPressure.*",
        world=13),
    bug("lease_forgotten",
        "a sender goes on writing after its lease has expired without a reply",
        ("core/datapath.cc",
         "candidate.peer); peer.lease_expired(core_.now_ns)) {",
         "candidate.peer); !PLANTED && peer.lease_expired(core_.now_ns)) {"),
        ("core/fast_path.cc",
         "return !flow_.route->peer->lease_expired(core_.now_ns);",
         "return PLANTED || !flow_.route->peer->lease_expired(core_.now_ns);"),
        layer="scenario", filter="Lease.*:Zombie.*", swarm=False),
    bug("message_taken_twice",
        "a duplicate control message is processed again",
        ("core/control_ops.cc",
         "      peer.channel->owe_ack();\n      return false;",
         "      peer.channel->owe_ack();\n      if (!PLANTED) return false;\n      break;")),
    bug("masked_member_counted_twice",
        "the counts of a masked member are added to the group twice",
        ("core/counter_group.cc",
         "if (in_round(i) && owes) counters.table.add(parent, 1);",
         "if (PLANTED || (in_round(i) && owes)) counters.table.add(parent, 1);"),
        layer="scenario", filter="CounterGroups.*", swarm=False),
    bug("drop_without_proof",
        "a drop completes with kOk as soon as the peer is disconnected",
        ("core/control_ops.cc",
         "if (peer->fence_op == slot) advance_fence(*peer);",
         "if (PLANTED && peer->fence_op == slot) complete_fence(*peer, Errc::kOk);\n"
         "  if (peer->fence_op == slot) advance_fence(*peer);"),
        layer="scenario", filter="Dropped.*"),
    bug("group_key_never_released",
        "the group's own counter key is not released with the group",
        ("core/counter_group.cc",
         "counters.release({.key = parent}, core->driver->now_ns());",
         "if (!PLANTED) counters.release({.key = parent}, core->driver->now_ns());")),
    bug("deadline_too_early",
        "the timer of an operation is set to half of its timeout",
        ("core/core.cc",
         "!op.completed_early) timers.set(op.timer, op.deadline_ns);",
         "!op.completed_early)\n"
         "    timers.set(op.timer,"
         " PLANTED ? (op.submitted_ns + op.deadline_ns) / 2 : op.deadline_ns);"),
        ("core/fast_path.cc",
         "core_.timers.set(post_batch.timer, post_batch.deadline_ns);",
         "core_.timers.set(post_batch.timer,"
         " PLANTED ? (post_batch.submitted_ns + post_batch.deadline_ns) / 2"
         " : post_batch.deadline_ns);")),
    bug("sent_message_reported_undelivered",
        "a message that was sent and not acknowledged in time is reported as not delivered",
        ("core/control_ops.cc",
         "core_.complete(op, code, sent ? Remote::kUnknown : Remote::kNotDelivered);",
         "core_.complete(op, code,\n"
         "               sent && !PLANTED ? Remote::kUnknown : Remote::kNotDelivered);")),
    bug("member_counts_not_forwarded",
        "counts of a member are not forwarded to its group",
        ("core/counter_table.cc",
         "  if (own.paid) {",
         "  if (own.paid && !PLANTED) {"),
        layer="unit", filter="CounterTable*:CounterGroupTable*"),
    bug("route_outlives_its_path",
        "a cached route to a region is used after its paths have changed",
        ("core/fast_path.cc",
         "if (route == nullptr || route->epoch != epoch_ || route->source_kind != source_kind)\n"
         "      [[unlikely]] {",
         "if (route == nullptr || (PLANTED ? route->paths.empty() : route->epoch != epoch_) ||\n"
         "      route->source_kind != source_kind) {"),
        ("core/fast_path.cc",
         "const bool cached = flow_.epoch == epoch_ &&",
         "const bool cached = (PLANTED || flow_.epoch == epoch_) &&"),
        layer="scenario", filter="FastPath.*", swarm=False),
    bug("parts_counted_for_another_batch",
        "parts of one batch are counted for the previous batch",
        ("core/report.cc",
         "void Reporter::defer_for_batch(BatchId batch) {",
         "void Reporter::defer_for_batch(BatchId batch) {\n"
         "  if (PLANTED && deferred_.batch) return;")),
    bug("fast_path_forgets_refused_writes",
        "writes of the fast path that a full rail refused are not posted again",
        ("core/fast_path.cc",
         "add_to_backlog(*rail, made.subspan(post(*rail, made)));",
         "const uint32_t accepted = post(*rail, made);\n"
         "    if (!PLANTED) add_to_backlog(*rail, made.subspan(accepted));"),
        layer="scenario", filter="FullQueue.*:BackPressure.*",
        world=34),
    bug("post_batch_without_a_deadline",
        "writes in a post batch have no timer",
        ("core/fast_path.cc",
         "if (post_batch.deadline_ns != kNeverNs)",
         "if (!PLANTED && post_batch.deadline_ns != kNeverNs)"),
        layer="scenario", filter="FastPath.*", swarm=False),
    bug("batch_entries_share_an_index",
        "all writes of an expanded post batch get the sequence number of the first",
        ("core/fast_path.cc",
         "post_batch.imms_before + "
         "PostBatch::popcount(post_batch.with_imm & PostBatch::low_bits(at));",
         "post_batch.imms_before + (PLANTED ? 0 : "
         "PostBatch::popcount(post_batch.with_imm & PostBatch::low_bits(at)));"),
        layer="scenario", filter="Failover.*", swarm=False),
    bug("revoke_without_proof",
        "a revoke completes once the importer was asked, not when its writes have drained",
        ("core/grants.cc",
         "  if (grant->phase == GrantSlot::Phase::kLive) ask_importer(op.grant.slot);",
         "  if (grant->phase == GrantSlot::Phase::kLive) ask_importer(op.grant.slot);\n"
         "  if (PLANTED && std::exchange(grant->revoke_op, kNone) != kNone) {\n"
         "    core_.complete(op, Errc::kOk, Remote::kDelivered);\n"
         "  }"),
        layer="scenario", filter="RevokedGrant.*", swarm=False),
    bug("revoke_ends_every_grant",
        "a revoke ends all grants of the region that the peer has, not the one that it names",
        ("core/region.cc",
         "if (grant != 0 && slot->grant != grant) continue;",
         "if (grant != 0 && slot->grant != grant && !PLANTED) continue;"),
        layer="scenario", filter="RevokedGrant.*", swarm=False),
    bug("parts_appended_unchecked",
        "a part is appended to its message whatever offset and total it has",
        ("core/messages.cc",
         "  if (part->offset != message.bytes.size() || "
         "part->total_bytes != message.total_bytes) {",
         "  if (!PLANTED && (part->offset != message.bytes.size() ||\n"
         "                   part->total_bytes != message.total_bytes)) {"),
        layer="scenario", filter="MessageParts.*", swarm=False),
    bug("message_before_its_turn",
        "a message is delivered when it arrives, not after the numbers before it",
        ("core/messages.cc",
         "  if (seq == peer.channel->arrived_up_to() + 1) {",
         "  if (PLANTED || seq == peer.channel->arrived_up_to() + 1) {"),
        layer="scenario", filter="MessageOrder.*:EarlyMessage.*", swarm=False),
    bug("pages_free_without_a_proof",
        "the pages of a prefiller that is lost or in doubt are free at once, without a proof",
        ("workloads/common/lease.cc",
         "LeaseEffects Lease::enter_fencing() noexcept {\n",
         "LeaseEffects Lease::enter_fencing() noexcept {\n"
         "  if (PLANTED) return enter_quiet();\n"),
        layer="kv", filter="KvRace.R07*:KvRace.R08*", swarm=False),
    bug("pages_free_at_the_confirmation",
        "pages are free when the prefiller has confirmed the cancel, before its writes are counted",
        ("workloads/common/lease.cc",
         "LeaseEffects Lease::after_confirm() noexcept {\n",
         "LeaseEffects Lease::after_confirm() noexcept {\n"
         "  if (PLANTED) return enter_quiet();\n"),
        layer="kv", filter="KvRace.R02*:KvRace.R04*", swarm=False),
    bug("write_at_the_count",
        "a decoder may write when the counts are here, on networks where bytes may land again",
        ("workloads/common/lease.cc",
         "      if (final || said_quiet_) effects = enter_quiet();",
         "      if (PLANTED || final || said_quiet_) effects = enter_quiet();"),
        layer="kv", filter="KvRace.R12*", swarm=False),
    bug("poisoned_key_trusted",
        "the prefiller's number is compared with a count whose key is poisoned",
        ("workloads/common/lease.cc",
         "if (unknown > 0 || poisoned_ || landed > total_) return enter_fencing();",
         "if ((!PLANTED && (unknown > 0 || poisoned_)) || landed > total_) "
         "return enter_fencing();"),
        layer="kv", filter="KvRace.R11*", swarm=False),
    bug("finished_request_confirmed_with_none",
        "a cancel that comes after everything was sent is answered with 0 landed writes",
        ("workloads/kv/prefiller_messages.cc",
         "{*serial, missed ? 0 : wire::kAllLanded, 0}",
         "{*serial, missed || PLANTED ? 0 : wire::kAllLanded, 0}"),
        layer="kv", filter="KvRace.R04*", swarm=False),
    bug("landed_miscounted",
        "the prefiller confirms one write fewer than have landed",
        ("workloads/kv/prefiller_core.cc",
         "  const uint64_t delivered = target.batch.delivered();\n",
         "  uint64_t delivered = target.batch.delivered();\n"
         "  if (PLANTED && delivered > 0) --delivered;\n"),
        layer="kv", filter="KvRace.ACancelBetweenTwoLayers*:KvDecodeRanks.R14*", swarm=False),
    bug("source_free_before_the_drain",
        "the prefiller's pages are free when the last write is posted, not when all have ended",
        ("workloads/kv/prefiller_push.cc",
         "  target.sealed = sealed || sealed.error().code != Errc::kExhausted;\n",
         "  target.sealed = sealed || sealed.error().code != Errc::kExhausted;\n"
         "  if (PLANTED) emit(*target.offer, PrefillEvent::Kind::kSourceFree);\n"),
        layer="kv", filter="KvRace.R16*:KvTransfer.*", swarm=False),
    bug("answers_awaited_for_ever",
        "a decoder waits without an end for counts, and for a prefiller to be quiet",
        ("workloads/common/lease.cc",
         "LeaseEffects Lease::expired() noexcept {\n",
         "LeaseEffects Lease::expired() noexcept {\n"
         "  if (PLANTED) return kStale;\n"),
        layer="kv", filter="KvState.Draining*:KvState.FullAQuiet*", swarm=False),
    bug("page_id_unchecked",
        "a prefiller accepts page ids past the decoder's pool",
        ("workloads/kv/prefiller_messages.cc",
         "      if (id >= group.target_pages) ",
         "      if (!PLANTED && id >= group.target_pages) "),
        layer="kv", filter="KvBadInput.PagesThat*", swarm=False),
    bug("earlier_descriptors_accepted",
        "a dispatch is accepted with the descriptors of another generation of its set",
        ("workloads/kv/prefiller_messages.cc",
         "                      set->second->generation == dispatch.set_generation &&\n",
         "                      (PLANTED || set->second->generation == "
         "dispatch.set_generation) &&\n"),
        layer="kv", filter="KvBadInput.DescriptorsThat*", swarm=False),
    bug("layers_pushed_after_the_pass",
        "layers are pushed when all of a chunk are computed, not one by one",
        ("workloads/kv/prefiller_push.cc",
         "    const auto done = static_cast<uint32_t>("
         "std::min<uint64_t>(passed, layers_.size()));\n",
         "    auto done = static_cast<uint32_t>(std::min<uint64_t>(passed, layers_.size()));\n"
         "    if (PLANTED && done < layers_.size()) done = 0;\n"),
        layer="kv", filter="*KvFirstToken*/*_4k", swarm=False),
    bug("replicated_heads_by_remainder",
        "a rank takes the head of its number modulo the heads: two ranks have each other's",
        ("workloads/layout/strided.cc",
         "      .range = {rank * total / size, 1}, .replicas",
         "      .range = {PLANTED ? rank % total : rank * total / size, 1}, .replicas"),
        layer="kv", filter="KvPlan.ConsecutiveRanks*:KvPlan.MovesHybrid*", swarm=False),
    bug("report_before_the_drain",
        "the target reports what it took once its QP is in the error state, before the drain",
        ("providers/verbs/teardown.cc",
         "  path.deadline_ns = std::min(path.deadline_ns, driver_.now_ns() + limit_ns);\n"
         "  check_drain(path);\n",
         "  if (PLANTED) return finish(path, true);\n"
         "  path.deadline_ns = std::min(path.deadline_ns, driver_.now_ns() + limit_ns);\n"
         "  check_drain(path);\n"),
        COUNTS_AFTER_THE_REPORT,
        layer="fake_verbs", filter="FakeNics/VerbsTeardown.*", swarm=False),
    bug("report_before_the_error_state",
        "the target reports what it took before it moves its QP to the error state",
        ("providers/verbs/teardown.cc",
         "  if (!path.connecting) move_to_error_later(path.qp, Direction::kIn, path.id);\n",
         "  if (PLANTED) return finish(path, true);\n"
         "  if (!path.connecting) move_to_error_later(path.qp, Direction::kIn, path.id);\n"),
        COUNTS_AFTER_THE_REPORT,
        layer="fake_verbs", filter="FakeNics/VerbsTeardown.*", swarm=False),
    bug("drained_when_empty",
        "the target takes an empty CQ after the error state for a drained one",
        ("providers/verbs/datapath.cc",
         "  n += poll_queues(out.subspan(n));\n",
         "  n += poll_queues(out.subspan(n));\n"
         "  if (PLANTED && n < out.size()) {\n"
         "    in_.each([&](InPath& path) {\n"
         "      const bool stopped = path.in_error && path.state == InPath::State::kBreaking;\n"
         "      if (stopped && !path.destroying) finish(path, true);\n"
         "    });\n"
         "  }\n"),
        COUNTS_AFTER_THE_REPORT,
        layer="fake_verbs", filter="FakeNics/VerbsTeardown.*", swarm=False),
    bug("writes_before_the_first_error_delivered",
        "the sender takes all requests before the first failed one as delivered",
        ("providers/verbs/datapath.cc",
         "  if (path.sends.fail(number, completion.status == IBV_WC_REM_ACCESS_ERR)) {",
         "  if (PLANTED) path.sends.succeed(number - 1);\n"
         "  if (path.sends.fail(number, completion.status == IBV_WC_REM_ACCESS_ERR)) {"),
        layer="fake_verbs", filter="FakeNics/VerbsTeardown.*", swarm=False),
)
