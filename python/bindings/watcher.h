#pragma once

#include "callback.h"

namespace fabric_python {

/// An object that reports until it is destroyed, and the Python function that it calls.
template <class T>
class WithCallback {
 public:
  WithCallback(SharedContext context, T&& value, SharedCallback callback)
      : callback_(std::move(callback)), held_(std::move(context), std::move(value)) {}
  WithCallback(WithCallback&&) = default;
  Held<T>& held() { return held_; }

 private:
  SharedCallback callback_;  // declared first: the object ends before its function
  Held<T> held_;
};

using PyWatcher = WithCallback<fabric::Watcher>;
using PySubscription = WithCallback<fabric::Subscription>;

}  // namespace fabric_python
