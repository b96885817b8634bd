#include "ycsb/generators.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "gpmstore/error.h"

namespace gpm::ycsb {

double Zeta(std::uint64_t items, double theta) {
  // With 64 terms summed one by one, the last correction used below is under 1e-12 of the sum for
  // every theta up to Zipfian::kMaxTheta, and the first one left out far less.
  constexpr std::uint64_t kHead = 64;
  const std::uint64_t head = std::min(items, kHead);
  double sum = 0;
  for (std::uint64_t i = head; i >= 1; --i) sum += std::pow(static_cast<double>(i), -theta);
  if (items <= kHead) return sum;

  // Sum of f(a+1) ... f(n) is the integral over [a, n], plus half of f(n) - f(a), plus corrections
  // from the odd derivatives of f(x) = x^-theta.
  const auto a = static_cast<double>(head);
  const auto n = static_cast<double>(items);
  const double fa = std::pow(a, -theta);
  const double fn = std::pow(n, -theta);
  const double integral = theta == 1
                              ? std::log(n / a)
                              : (std::pow(n, 1 - theta) - std::pow(a, 1 - theta)) / (1 - theta);
  const double first = -theta * (fn / n - fa / a) / 12;
  const double third =
      theta * (theta + 1) * (theta + 2) * (fn / (n * n * n) - fa / (a * a * a)) / 720;
  const double fifth = -theta * (theta + 1) * (theta + 2) * (theta + 3) * (theta + 4) *
                       (fn / std::pow(n, 5) - fa / std::pow(a, 5)) / 30240;
  return sum + integral + (fn - fa) / 2 + first + third + fifth;
}

Zipfian::Zipfian(std::uint64_t items, double theta) : Zipfian(items, theta, -1) {}

Zipfian::Zipfian(std::uint64_t items, double theta, double zeta)
    : items_(items), first_items_(items), theta_(theta) {
  if (!(theta >= 0 && theta <= kMaxTheta)) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("a Zipfian skew of {} can't be drawn from: it is 0 (uniform) to {}",
                            theta, kMaxTheta));
  }
  Prepare(zeta >= 0 ? zeta : Zeta(items, theta));
}

void Zipfian::SetItems(std::uint64_t items) {
  items_ = items;
  Prepare(Zeta(items, theta_));
}

void Zipfian::Prepare(double zeta) {
  zeta_ = zeta;
  second_ = 1 + std::pow(0.5, theta_);
  const auto n = static_cast<double>(first_items_ > 2 ? first_items_ : items_);
  if (theta_ == 1) {
    // The limit of the formula for other skews: n * (eta * u - eta + 1)^alpha becomes an
    // exponential that is n at u = 1 and 2 where item 1 ends.
    log_base_ = std::log(2 / n) / (1 - second_ / zeta_);
  } else {
    alpha_ = 1 / (1 - theta_);
    eta_ = (1 - std::pow(2 / n, 1 - theta_)) / (1 - second_ / zeta_);
  }
}

std::uint64_t Zipfian::Draw(Random& random) const {
  const double u = random.NextDouble();
  const double uz = u * zeta_;
  if (uz < 1 || items_ == 1) return 0;
  if (uz < second_ || items_ == 2) return 1;
  const double share =
      theta_ == 1 ? std::exp(log_base_ * (1 - u)) : std::pow(eta_ * u - eta_ + 1, alpha_);
  const auto item = static_cast<std::uint64_t>(static_cast<double>(items_) * share);
  return std::min(item, items_ - 1);  // rounding can reach the end
}

ScrambledZipfian::ScrambledZipfian(std::uint64_t items, double theta)
    : items_(items),
      zipfian_(kRange + 1, theta, theta == Zipfian::kDefaultTheta ? kRangeZeta : -1) {}

Hotspot::Hotspot(std::uint64_t items, double data_fraction, double operation_fraction)
    : items_(items),
      hot_items_(static_cast<std::uint64_t>(static_cast<double>(items) * data_fraction)),
      operation_fraction_(operation_fraction) {}

std::uint64_t Hotspot::Draw(Random& random) const {
  const bool hot = random.NextDouble() < operation_fraction_;
  // Where one of the two parts is empty, the other takes all draws.
  if ((hot && hot_items_ > 0) || hot_items_ == items_) return random.NextBelow(hot_items_);
  return hot_items_ + random.NextBelow(items_ - hot_items_);
}

Exponential::Exponential(double percentile, double range)
    : gamma_(-std::log1p(-percentile / 100) / range) {}

std::uint64_t Exponential::Draw(Random& random, std::uint64_t last) const {
  constexpr double kEven = 1e-12;  // a slope that no number of draws shows
  const double end = static_cast<double>(last) + 1;
  const double u = random.NextDouble();
  // Of the distribution's share that lies before the end, as drawing again beyond it would give.
  const double distance =
      gamma_ * end > kEven ? -std::log1p(u * std::expm1(-gamma_ * end)) / gamma_ : u * end;
  return std::min(static_cast<std::uint64_t>(std::min(distance, end)), last);
}

}  // namespace gpm::ycsb
