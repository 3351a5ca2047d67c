"""Durations, offerings, prices and forecasts in words."""

from gpuscaler.model.offerings import OfferingKey
from gpuscaler.planning.state.boot_times import Forecast


def format_duration(seconds: float) -> str:
    """A duration rounded to two units: ``45s``, ``3m40s``, ``6m``, ``1h05m``, ``2d3h``."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        minutes, rest = divmod(whole, 60)
        return f"{minutes}m{rest:02}s" if rest else f"{minutes}m"
    if whole < 86_400:
        hours, rest = divmod(whole // 60, 60)
        return f"{hours}h{rest:02}m" if rest else f"{hours}h"
    days, rest = divmod(whole // 3600, 24)
    return f"{days}d{rest}h" if rest else f"{days}d"


def format_offering(key: OfferingKey) -> str:
    """``g5.xlarge spot in us-east-1a``."""
    pool, market, instance_type, zone = key
    where = f" in {zone}" if zone else ""
    return f"{instance_type} {market}{where}" if instance_type else f"a machine of pool {pool}"


def format_forecast_and_price(forecast: Forecast, price: str) -> str:
    """``ready in about 3m40s, p95 6m, $1.01/h``; a forecast without observed machines says so."""
    return f"{format_forecast(forecast)}, {price}"


def format_forecast(forecast: Forecast) -> str:
    """``ready in about 3m40s, p95 6m``, with the forecast's basis if too few machines of the kind were observed."""
    late = f", p95 {format_duration(forecast.late)}" if format_duration(forecast.late) != format_duration(forecast.typical) else ""
    return f"ready in about {format_duration(forecast.typical)}{late}{f' ({forecast.basis})' if forecast.basis else ''}"


def format_price_range(least: float, most: float) -> str:
    """``$1.01/h``, or ``$1.89 to $47.24/h`` while the cloud has not chosen yet."""
    return (
        f"{format_dollars(least)}/h"
        if format_dollars(least) == format_dollars(most)
        else f"{format_dollars(least)} to {format_dollars(most)}/h"
    )


def format_dollars(dollars: float) -> str:
    """An amount in cents, or with more digits for small amounts."""
    return f"${dollars:.2f}" if dollars >= 0.1 or dollars == 0 else f"${dollars:.4f}"


def format_names(names: tuple[str, ...], most: int = 3) -> str:
    """The first of ``names``, and the number of the others."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
