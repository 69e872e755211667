#pragma once

#include "core/core.h"
#include "core/transfer.h"

// The account of pieces in flight: hot, and shared by the short way and the long one.

namespace fabric::core {

inline uint32_t Transfers::take_piece() {
  if (free_piece_ == kNone) {
    pieces_.emplace_back();
    return static_cast<uint32_t>(pieces_.size() - 1);
  }
  const uint32_t index = free_piece_;
  free_piece_ = pieces_[index].next;
  --pieces_free_;
  return index;
}

inline void Transfers::give_piece(uint32_t cookie) {
  Piece& piece = pieces_[cookie];
  piece.op = kNone;
  piece.stranded = false;
  piece.next = free_piece_;
  free_piece_ = cookie;
  ++pieces_free_;
}

/// Nobody may hold more of the rail than is left of it: peers that take nothing cannot fill it
/// between them, and one that is alone still gets half (P18).
inline bool Transfers::room_for(const RailSlot& rail, const Path& path) noexcept {
  const uint32_t left = rail.caps.queue_depth - std::min(rail.caps.queue_depth, rail.posted);
  return path.posted < rail.caps.path_depth && (path.posted == 0 || path.posted < left);
}

/// How many pieces room_for() would let through, one after the other.
inline uint32_t Transfers::room_on(const RailSlot& rail, const Path& path) noexcept {
  if (rail.posted >= rail.caps.queue_depth || !room_for(rail, path)) return 0;
  const uint32_t left = rail.caps.queue_depth - rail.posted;
  const uint32_t share = path.posted < left ? (left - path.posted + 1) / 2 : 1;
  return std::min({left, rail.caps.path_depth - path.posted, share});
}

/// What all pieces have in common, and everybody who keeps an account of them.
inline void Transfers::piece_made(uint32_t cookie, Op& op, Peer& peer, Path& path, RailSlot& rail,
                                  LocalRegion* region) {
  Piece& piece = pieces_[cookie];
  piece.op = op.self;
  piece.path = path.index;
  piece.peer = path.peer;
  piece.region_slot = region == nullptr ? kNone : op.source.slot;
  piece.seq = peer.next_piece_seq++;
  piece.posted_ns = core_.now_ns;
  piece.priority = op.priority;
  piece.imms_before = UINT64_MAX;
  piece.end = {};
  piece.barred = Errc::kOk;
  piece.prev = path.last_piece;
  piece.next = kNone;
  (path.last_piece == kNone ? path.first_piece : pieces_[path.last_piece].next) = cookie;
  path.last_piece = cookie;
  ++path.posted;
  ++rail.posted;
  ++op.pieces_posted;
  if (op.priority == Priority::kBulk) rail.bulk_bytes += piece.wire.size_bytes;
  if (region != nullptr) ++region->posted;
  const size_t bucket = bucket_of(core_.now_ns - op.submitted_ns);
  ++rail.tx.submit_to_post.bucket[bucket];
  ++peer.tx().submit_to_post.bucket[bucket];
}

/// The other end of piece_made().
inline void Transfers::piece_left(const Piece& piece, Path& path, RailSlot& rail) {
  (piece.prev == kNone ? path.first_piece : pieces_[piece.prev].next) = piece.next;
  (piece.next == kNone ? path.last_piece : pieces_[piece.next].prev) = piece.prev;
  --path.posted;
  --rail.posted;
  if (piece.priority == Priority::kBulk) rail.bulk_bytes -= piece.wire.size_bytes;
  if (LocalRegion* region = core_.regions.at(piece.region_slot); region != nullptr) {
    --region->posted;
    if (region->end != LocalRegion::End::kAlive) core_.regions.source_drained(piece.region_slot);
  }
}

}  // namespace fabric::core
